package poolpriority

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/pool"
)

// EventsToRegister returns the events that may make a pod schedulable after this plugin rejected the pod. The scheduler
// calls EventsToRegister once, after it has created all plugins of the profile. If the plugin cannot work in the
// profile, EventsToRegister returns an error, and the scheduler does not start.
func (pl *PoolPriority) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	if err := pl.checkProfile(); err != nil {
		return nil, err
	}
	for _, plugin := range pl.handle.ListPlugins().Filter.Enabled {
		pl.filters.Insert(plugin.Name)
	}
	return []fwk.ClusterEventWithHint{
		// A pod may become schedulable when a node is added, when it loses a taint, or when new labels move it to
		// another pool. It may also become schedulable when a burst node becomes ready. Other plugins watch for free
		// capacity.
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint | fwk.UpdateNodeLabel | fwk.UpdateNodeCondition}, QueueingHintFn: pl.isSchedulableAfterNodeChange},
		// This plugin replaces TaintToleration, so it watches the pod's own tolerations. Changes of the burst
		// annotation are not registered, because they need the general Update event. With that event, the queue checks
		// all unschedulable pods at each status update of any bound pod. Instead, the gatekeeper watches the annotation
		// and requeues the pod.
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodToleration}, QueueingHintFn: pl.isSchedulableAfterPodTolerationChange},
		// When a pod ends, other plugins requeue pods for the capacity that becomes free on the node. The gatekeeper
		// requeues as many pods as fit into the free budget of the burst pool. Pods with a higher priority come first.
	}, nil
}

// isSchedulableAfterNodeChange is invoked for all node events reported by an informer. It requeues the pod if letsIn
// accepts the node after the change. If letsIn also accepted the node before the change, it requeues the pod only if
// the node has moved to another pool.
func (pl *PoolPriority) isSchedulableAfterNodeChange(logger klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	oldNode, _ := oldObj.(*v1.Node) // nil if the node is new
	newNode, ok := newObj.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("the event has a %T, not a Node", newObj)
	}
	if !pl.letsIn(logger, pod, newNode) {
		return fwk.QueueSkip, nil
	}
	if oldNode != nil && pl.letsIn(logger, pod, oldNode) && pl.pools.Of(oldNode.Labels) == pl.pools.Of(newNode.Labels) {
		return fwk.QueueSkip, nil
	}
	logger.V(5).Info("A created or updated node may be able to run the pod", "pod", klog.KObj(pod), "node", klog.KObj(newNode))
	return fwk.Queue, nil
}

// letsIn reports whether the node's rank, gate and taints allow the pod. For a pod that is not held, the gate counts as
// open.
func (pl *PoolPriority) letsIn(logger klog.Logger, pod *v1.Pod, node *v1.Node) bool {
	rank, i := pl.pools.RankOf(node.Labels)
	if rank == pool.Excluded {
		return false
	}
	tolerations := pod.Spec.Tolerations
	if pl.pools.IsBurst(i) {
		if !isAvailable(node) || pl.awaitsTaint(node) {
			return false
		}
		// A held pod is requeued when the gate opens. A pod that is not held was rejected by an earlier check, and may
		// reach the gate in its next cycle.
		if held, ok := pl.gatekeeper.Lookup(pod.UID); ok {
			if decision := pl.gatekeeper.Decide(pod, gatekeeper.Snapshot{}, held.Reservation.Wait); !decision.Burst[i].Open {
				return false
			}
		}
		tolerations = pl.asOnBurstNode(pod, i).Spec.Tolerations
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(logger, node.Spec.Taints, tolerations,
		keepsOut, pl.features.EnableTaintTolerationComparisonOperators)
	return !untolerated
}

// keepsOut reports whether the taint keeps pods without its toleration off the node.
func keepsOut(taint *v1.Taint) bool {
	return taint.Effect == v1.TaintEffectNoSchedule || taint.Effect == v1.TaintEffectNoExecute
}

// isSchedulableAfterPodTolerationChange is invoked when a pod gets a toleration. It requeues the unschedulable pod only
// if the unschedulable pod itself got the toleration.
func (pl *PoolPriority) isSchedulableAfterPodTolerationChange(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	newPod, ok := newObj.(*v1.Pod)
	if !ok {
		return fwk.Queue, fmt.Errorf("the event has a %T, not a Pod", newObj)
	}
	if newPod.UID == pod.UID {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}
