//go:build !kubernetes_1_37

package compat

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// NextPod waits for the next pod of the scheduling queue.
func NextPod(logger klog.Logger, s *scheduler.Scheduler) (*framework.QueuedPodInfo, error) {
	return s.NextPod(logger)
}

// AddUnschedulable adds the pod to the queue after a cycle that found no node for it.
func AddUnschedulable(logger klog.Logger, s *scheduler.Scheduler, info *framework.QueuedPodInfo) error {
	return s.SchedulingQueue.AddUnschedulableIfNotPresent(logger, info, s.SchedulingQueue.SchedulingCycle())
}

// QueuedPod returns the queue's entry for the pod.
func QueuedPod(s *scheduler.Scheduler, pod *v1.Pod) (*framework.QueuedPodInfo, bool) {
	return s.SchedulingQueue.GetPod(pod.Name, pod.Namespace)
}

// Dequeue removes the pod from the queue.
func Dequeue(_ klog.Logger, s *scheduler.Scheduler, pod *v1.Pod) { s.SchedulingQueue.Delete(pod) }

// BoundPodEvents returns the events for which the scheduler looks at waiting pods when a bound pod changes.
func BoundPodEvents(now, was *v1.Pod) []fwk.ClusterEvent {
	return framework.PodSchedulingPropertiesChange(now, was)
}

// NewInformerFactory returns the scheduler's informers.
func NewInformerFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0)
}
