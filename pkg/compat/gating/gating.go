// Package gating lets a scheduler gate pods that it has tried. kube-scheduler itself gates only pods that a PreEnqueue
// plugin rejected. At an event, the scheduling queue skips gated pods without looking for queueing hints.
package gating

import (
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Queue is a scheduling queue that gates an unschedulable pod if Plugin returns a name. The pod then counts as rejected
// by the PreEnqueue plugin of this name. From 1.36 on, kube-scheduler's handler of failed cycles clears the fields that
// Queue sets, so the handler cannot set them.
type Queue struct {
	queue.SchedulingQueue
	Plugin func(*framework.QueuedPodInfo) string
	// Cached is called with the objects of each event that may move pods, once the scheduler's cache has the event.
	Cached func(event fwk.ClusterEvent, oldObj, newObj any)
}

// MoveAllToActiveOrBackoffQueue calls Cached, and moves pods.
func (q Queue) MoveAllToActiveOrBackoffQueue(logger klog.Logger, event fwk.ClusterEvent, oldObj, newObj any, check queue.PreEnqueueCheck) {
	q.Cached(event, oldObj, newObj)
	q.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, event, oldObj, newObj, check)
}
