//go:build kubernetes_1_36

// Package compat holds what tests and benchmarks need of kube-scheduler and what differs between its minor versions.
package compat

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// SchedulePod runs a scheduling cycle up to the choice of a node.
func SchedulePod(ctx context.Context, s *scheduler.Scheduler, profile framework.Framework, state fwk.CycleState, pod *v1.Pod) (scheduler.ScheduleResult, error) {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return scheduler.ScheduleResult{}, err
	}
	// As the scheduling cycle does before.
	if err := s.Cache.UpdateSnapshot(klog.FromContext(ctx), profile.SnapshotSharedLister().(*cache.Snapshot)); err != nil {
		return scheduler.ScheduleResult{}, err
	}
	return s.SchedulePod(ctx, profile, state, &framework.QueuedPodInfo{PodInfo: info, PodSignature: profile.SignPod(ctx, pod)})
}

// Enqueue adds the pod to the scheduling queue.
func Enqueue(ctx context.Context, s *scheduler.Scheduler, pod *v1.Pod) {
	s.SchedulingQueue.Add(ctx, pod)
}

// NextPod waits for the next pod of the scheduling queue.
func NextPod(logger klog.Logger, s *scheduler.Scheduler) (*framework.QueuedPodInfo, error) {
	return s.NextPod(logger)
}

// AddUnschedulable adds the pod to the queue after a cycle that found no node for it.
func AddUnschedulable(logger klog.Logger, s *scheduler.Scheduler, info *framework.QueuedPodInfo) error {
	return s.SchedulingQueue.AddUnschedulableIfNotPresent(logger, info, s.SchedulingQueue.SchedulingCycle())
}

// Dequeue removes the pod from the queue.
func Dequeue(_ klog.Logger, s *scheduler.Scheduler, pod *v1.Pod) { s.SchedulingQueue.Delete(pod) }

// BoundPodEvents returns the events for which the scheduler looks at waiting pods when a bound pod changes.
func BoundPodEvents(now, was *v1.Pod) []fwk.ClusterEvent {
	return framework.PodSchedulingPropertiesChange(now, was)
}

// NewCache returns the scheduler's cache, empty.
func NewCache(ctx context.Context) cache.Cache { return cache.New(ctx, nil, false) }

// NewInformerFactory returns the scheduler's informers.
func NewInformerFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0)
}

// JoinPodGroup makes the pod a member of a group of pods that are scheduled together.
func JoinPodGroup(pod *v1.Pod) {
	name := "group"
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
}

// NoEvents is a recorder factory whose recorders write no events.
func NoEvents(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
