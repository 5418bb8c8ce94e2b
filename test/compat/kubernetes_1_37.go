//go:build kubernetes_1_37

package compat

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// NextPod waits for the next pod of the scheduling queue.
func NextPod(logger klog.Logger, s *scheduler.Scheduler) (*framework.QueuedPodInfo, error) {
	entity, err := s.NextEntity(logger)
	if err != nil {
		return nil, err
	}
	return entity.(*framework.QueuedPodInfo), nil
}

// AddUnschedulable adds the pod to the queue after a cycle that found no node for it.
func AddUnschedulable(logger klog.Logger, s *scheduler.Scheduler, info *framework.QueuedPodInfo) error {
	return s.SchedulingQueue.AddUnschedulablePodIfNotPresent(logger, info, s.SchedulingQueue.SchedulingCycle())
}

// QueuedPod returns the queue's entry for the pod.
func QueuedPod(s *scheduler.Scheduler, pod *v1.Pod) (*framework.QueuedPodInfo, bool) {
	return s.SchedulingQueue.GetPod(pod.Name, pod.Namespace, pod.Spec.SchedulingGroup)
}

// Dequeue removes the pod from the queue.
func Dequeue(logger klog.Logger, s *scheduler.Scheduler, pod *v1.Pod) {
	s.SchedulingQueue.Delete(logger, pod)
}

// BoundPodEvents returns the events for which the scheduler looks at waiting pods when a bound pod changes.
func BoundPodEvents(now, was *v1.Pod) []fwk.ClusterEvent {
	return framework.PodSchedulingPropertiesChange(now, was, false)
}

// NewInformerFactory returns the scheduler's informers.
func NewInformerFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0, nil)
}

// NewCache returns the scheduler's cache, empty.
func NewCache(ctx context.Context) cache.Cache { return cache.New(ctx, nil, false, false) }
