//go:build !kubernetes_1_36 && !kubernetes_1_37

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
	return s.SchedulePod(ctx, profile, state, pod)
}

// Enqueue adds the pod to the scheduling queue.
func Enqueue(ctx context.Context, s *scheduler.Scheduler, pod *v1.Pod) {
	s.SchedulingQueue.Add(klog.FromContext(ctx), pod)
}

// JoinPodGroup makes the pod a member of a group of pods that are scheduled together.
func JoinPodGroup(pod *v1.Pod) {
	pod.Spec.WorkloadRef = &v1.WorkloadReference{Name: "workload", PodGroup: "group"}
}

// NoEvents is a recorder factory whose recorders write no events.
func NoEvents(string) events.EventRecorder { return &events.FakeRecorder{} }

// NewCache returns the scheduler's cache, empty.
func NewCache(ctx context.Context) cache.Cache { return cache.New(ctx, 0, nil) }
