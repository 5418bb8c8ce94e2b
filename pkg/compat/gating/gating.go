// Package gating lets a scheduler gate pods that it has tried, and learn of nodes that may have capacity. kube-scheduler itself
// gates only pods that a PreEnqueue plugin rejected. At an event, the scheduling queue skips gated pods without looking for
// queueing hints.
package gating

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
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
	// Freed is called with the name of a node that may have capacity for more pods, once the scheduler's cache has the event.
	// The name is empty if an event frees nothing.
	Freed func(node string)
}

// MoveAllToActiveOrBackoffQueue calls Freed, and moves pods.
func (q Queue) MoveAllToActiveOrBackoffQueue(logger klog.Logger, event fwk.ClusterEvent, oldObj, newObj any, check queue.PreEnqueueCheck) {
	q.Freed(freedBy(event, oldObj, newObj))
	q.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, event, oldObj, newObj, check)
}

const freesNode = fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint | fwk.UpdateNodeCondition

// freedBy returns the node that may have capacity for more pods after the event, or "". The deletion of a pod also stands for
// that of its nomination. A change of a pod that frees nothing, such as one of its status, has all bits of fwk.Update.
func freedBy(event fwk.ClusterEvent, oldObj, newObj any) string {
	if node, ok := newObj.(*v1.Node); ok && event.ActionType&freesNode != 0 {
		return node.Name
	}
	if pod, ok := oldObj.(*v1.Pod); ok && (event.ActionType == fwk.Delete || event.ActionType == fwk.UpdatePodScaleDown) {
		return cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName)
	}
	return ""
}
