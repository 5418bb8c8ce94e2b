package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// EventsToRegister returns the events that may make a pod schedulable after this plugin rejected the pod. The scheduler
// calls EventsToRegister once, after it has created all plugins of the profile.
func (pl *PoolPriority) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	for _, plugin := range pl.handle.ListPlugins().Filter.Enabled {
		pl.filters.Insert(plugin.Name)
	}
	events := []fwk.ClusterEventWithHint{
		// A pod may become schedulable when a node is added, when it loses a taint, or when new labels move it to
		// another pool. It may also become schedulable when a burst node becomes ready. Other plugins watch for free
		// capacity.
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint | fwk.UpdateNodeLabel | fwk.UpdateNodeCondition}, QueueingHintFn: pl.isSchedulableAfterNodeChange},
		// This plugin replaces TaintToleration, so it watches the pod's own tolerations. Changes of the burst
		// annotation are not registered, because they need the general Update event. With that event, the queue checks
		// all unschedulable pods at each status update of any bound pod. Instead, the gatekeeper watches the annotation
		// and requeues the pod.
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodToleration}, QueueingHintFn: pl.isSchedulableAfterPodTolerationChange},
		// When a pod ends, other plugins requeue the pods that they rejected. The gatekeeper requeues held pods for which
		// a node or the budget of a burst pool has capacity (requeueByLoop). Pods with a higher priority come first.
	}
	return events, nil
}

// PreEnqueue lets each pod into the scheduling queue. It exists so that requeueByLoop can gate pods by this plugin.
func (pl *PoolPriority) PreEnqueue(context.Context, *v1.Pod) *fwk.Status { return nil }

// isSchedulableAfterNodeChange is invoked for all node events reported by an informer. It requeues the pod if letsIn
// accepts the node after the change. If letsIn also accepted the node before the change, it requeues the pod only if
// the node has moved to another pool. The gatekeeper requeues a pod with held.Pod.ByLoop.
func (pl *PoolPriority) isSchedulableAfterNodeChange(logger klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	oldNode, _ := oldObj.(*v1.Node) // nil if the node is new
	newNode, ok := newObj.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("the event has a %T, not a Node", newObj)
	}
	var open []bool // by the pool's index; nil if the pod is not held
	if pl.gatekeeper != nil {
		entry, _ := pl.gatekeeper.Held().Lookup(pod.UID)
		if open = entry.Open; entry.ByLoop {
			return fwk.QueueSkip, nil
		}
	}
	if !pl.letsIn(pod, open, newNode) {
		return fwk.QueueSkip, nil
	}
	if oldNode != nil && pl.letsIn(pod, open, oldNode) && pl.pools.Of(oldNode) == pl.pools.Of(newNode) {
		return fwk.QueueSkip, nil
	}
	logger.V(5).Info("A created or updated node may be able to run the pod", "pod", klog.KObj(pod), "node", klog.KObj(newNode))
	return fwk.Queue, nil
}

// letsIn reports whether the node's rank and gate allow the pod, and whether the node suits the pod. open is the last
// decision about a held pod. The gatekeeper requeues the pod when the gate opens. For a pod that is not held, the gate
// counts as open: an earlier check rejected the pod, and it may reach the gate in its next cycle.
func (pl *PoolPriority) letsIn(pod *v1.Pod, open []bool, node *v1.Node) bool {
	rank, i := pl.pools.RankOf(node)
	if rank == pool.Excluded {
		return false
	}
	tolerations := pod.Spec.Tolerations
	if pl.pools.IsBurst(i) {
		if !pl.isAvailable(node) || pl.awaitsTaint(node) || open != nil && !open[i] {
			return false
		}
		tolerations = pl.asOnBurstNode(pod, i).Spec.Tolerations
	}
	// NodeResourcesFit may ignore other resources or pod-level requests.
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	maps.DeleteFunc(requests, func(name v1.ResourceName, _ apiresource.Quantity) bool {
		return pod.Spec.Resources != nil || name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage
	})
	return nodegroups.Suits(node, requests, nodeaffinity.GetRequiredNodeAffinity(pod), tolerations)
}

// requeueByLoop wraps the scheduler's handler of failed cycles. If only plugins that are nodeLocal rejected a held pod,
// only this plugin counts as the plugin that rejected the pod. The scheduling queue then does not requeue the pod when
// a node changes or when any pod ends. The gatekeeper requeues as many of these pods as fit on the node.
//
// Such a pod is also gated by this plugin (gatingPlugin). At an event, the queue then skips the pod. Otherwise, the
// queue would look for hints for each of these pods at each binding of any pod, which takes 26 ms for 10,000 pods.
// PreEnqueue ends the gating when the gatekeeper, or the queue's flush after 5 min, requeues the pod (1.35.4's flush
// skips gated pods, 1.35.8's does not).
func (pl *PoolPriority) requeueByLoop(next scheduler.FailureHandlerFn) scheduler.FailureHandlerFn {
	return func(ctx context.Context, profile framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status, nominating *fwk.NominatingInfo, start time.Time) {
		var fit *framework.FitError
		byLoop := errors.As(status.AsError(), &fit) && nodeLocal.IsSuperset(fit.Diagnosis.UnschedulablePlugins) && len(fit.Diagnosis.PendingPlugins) == 0 &&
			(nominating == nil || nominating.NominatedNodeName == "")
		if pl.gatekeeper.Held().ByLoop(info.Pod.UID, byLoop) {
			fit.Diagnosis.UnschedulablePlugins = sets.New(Name)
		}
		next(ctx, profile, info, status, nominating, start)
	}
}

// gatingPlugin returns the name of the plugin that gates the pod, or "": this plugin, if the gatekeeper requeues the pod and the
// profile has the plugin at PreEnqueue, which ends the gating.
func (pl *PoolPriority) gatingPlugin(info *framework.QueuedPodInfo) string {
	if entry, _ := pl.gatekeeper.Held().Lookup(info.Pod.UID); entry.ByLoop && pl.gates {
		return Name
	}
	return ""
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

// argsOf returns the plugin's arguments in the configuration of a profile, or nil if it has none.
func argsOf(config *schedconfig.KubeSchedulerProfile, plugin string) runtime.Object {
	if i := slices.IndexFunc(config.PluginConfig, func(c schedconfig.PluginConfig) bool { return c.Name == plugin }); i >= 0 {
		return config.PluginConfig[i].Args
	}
	return nil
}
