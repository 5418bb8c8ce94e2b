package poolpriority

import (
	"context"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/pool"
)

// EventsToRegister returns the possible events that may make a Pod failed by this plugin schedulable. The scheduler
// calls it once, when all plugins of the profile are there: a profile in which the plugin cannot do its work stops the
// start-up here.
func (pl *PoolPriority) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	if err := pl.checkProfile(); err != nil {
		return nil, err
	}
	for _, plugin := range pl.handle.ListPlugins().Filter.Enabled {
		pl.filters.Insert(plugin.Name)
	}
	return []fwk.ClusterEventWithHint{
		// A node that is new, whose taints went or whose labels put it into another pool can let a pod in, and so can a
		// burst node that became ready. Capacity is other plugins' business.
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint | fwk.UpdateNodeLabel | fwk.UpdateNodeCondition}, QueueingHintFn: pl.isSchedulableAfterNodeChange},
		// The pod's own tolerations, because this plugin answers for TaintToleration. A change of the burst annotation
		// would be the general Update: registered, it has the queue walk all unschedulable pods for each status update
		// of any bound pod. The gatekeeper sees that change by itself and activates the pod.
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodToleration}, QueueingHintFn: pl.isSchedulableAfterPodTolerationChange},
		// Of the room that a pod leaves when it ends, that on nodes is other plugins' business, and that in a budget
		// the gatekeeper's: it requeues as many pods as there is room for, the best first.
	}, nil
}

// isSchedulableAfterNodeChange is invoked for all node events reported by an informer. It queues the pod if the node
// might be one that it can use and was not before.
func (pl *PoolPriority) isSchedulableAfterNodeChange(logger klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	oldNode, newNode, err := util.As[*v1.Node](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if !pl.letsIn(logger, pod, newNode) {
		return fwk.QueueSkip, nil
	}
	if oldNode != nil && pl.letsIn(logger, pod, oldNode) && pl.pools.Of(oldNode.Labels) == pl.pools.Of(newNode.Labels) {
		return fwk.QueueSkip, nil
	}
	logger.V(5).Info("A node was created or updated that may let the pod in", "pod", klog.KObj(pod), "node", klog.KObj(newNode))
	return fwk.Queue, nil
}

// letsIn reports whether rank, gate and taints of the node would let the pod pass now, or pass further than before.
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
		// A held pod is requeued when the gate opens. A pod that is not held was rejected before it reached the gate:
		// it may reach it now.
		if held, ok := pl.gatekeeper.Lookup(pod.UID); ok {
			if decision := pl.gatekeeper.Decide(pod, gatekeeper.Snapshot{}, held.Reservation.Wait); !decision.Burst[i].Open {
				return false
			}
		}
		tolerations = pl.asOnBurstNode(pod, i).Spec.Tolerations
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(logger, node.Spec.Taints, tolerations,
		helper.DoNotScheduleTaintsFilterFunc(), pl.features.EnableTaintTolerationComparisonOperators)
	return !untolerated
}

// isSchedulableAfterPodTolerationChange is invoked when a pod got a toleration. It queues the pod if it is the one.
func (pl *PoolPriority) isSchedulableAfterPodTolerationChange(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	_, newPod, err := util.As[*v1.Pod](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if newPod != nil && newPod.UID == pod.UID {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}
