//go:build kubernetes_1_36 || kubernetes_1_37

package compat

import (
	"context"

	v1 "k8s.io/api/core/v1"
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

// JoinPodGroup makes the pod a member of a group of pods that are scheduled together.
func JoinPodGroup(pod *v1.Pod) {
	name := "group"
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
}

// NoEvents is a recorder factory whose recorders write no events.
func NoEvents(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
