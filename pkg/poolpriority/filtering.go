package poolpriority

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// taintGrace is the age from which a burst node is used even if it has no gate taint. Normally, the controller adds the
// gate taint much sooner.
const taintGrace = 10 * time.Second

// Filter rejects nodes that rank below the best pool with a feasible node. It rejects nodes of a burst pool if the
// pool's gate is closed for the pod. It rejects nodes with taints that the pod does not tolerate. On a burst node, the
// pod also has the tolerations of the burst pool. Filter checks the rank again after PreFilter, because nominated nodes
// and batch hints bypass PreFilter's result.
func (pl *PoolPriority) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	c, err := readCycle(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	place, i, excluded := c.worst, c.pool, false
	if !c.narrowed || !c.found.Has(nodeInfo.Node().Name) { // most nodes that reach Filter are in c.found
		var rank pool.Rank
		rank, i = pl.index.rankOf(nodeInfo.Node())
		place, excluded = c.order.PlaceOf(rank), rank == pool.Excluded
	}
	switch {
	case excluded:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, gate.ReasonInNoBurstPool.Sentence)
	case place > c.worst:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, gate.ReasonBetterPool.Sentence)
	case c.leavesOut(i):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, gate.ReasonBindingsDenied.Sentence)
	case !pl.pools.IsBurst(i):
		return pl.taints.Filter(ctx, state, pod, nodeInfo)
	}
	if !pl.isAvailable(nodeInfo.Node()) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, gate.ReasonNotAvailable.Sentence)
	}
	awaits := pl.awaitsTaint(nodeInfo.Node())
	if status := pl.taints.Filter(ctx, state, pl.asOnBurstNode(pod, i), nodeInfo); !status.IsSuccess() {
		return status
	}
	if verdict := &c.decision.Burst[i]; !verdict.Open {
		c.flags.gateClosed.Store(true)
		if verdict.Passes() {
			c.flags.passing.Store(true)
		}
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, verdict.Reason.Sentence)
	}
	if awaits {
		c.flags.awaitsGateTaint.Store(true)
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, gate.ReasonAwaitsGateTaint.Sentence)
	}
	if status := c.vain[nodeInfo.Node().Name]; status.IsRejected() && !c.hosts.counts { // it was tried in vain as a host
		return fwk.NewStatus(status.Code(), status.Reasons()...)
	}
	return nil
}

// isAvailable reports whether the burst node is ready, is not cordoned and has its label, whatever taints the pod tolerates.
func (pl *PoolPriority) isAvailable(node *v1.Node) bool {
	return nodegroups.IsReady(node) && !node.Spec.Unschedulable && !pl.pools.LacksLabel(node)
}

// awaitsTaint reports whether the burst node is so new that the controller may be about to add the gate taint. Pods
// bound before the taint is added would run beside pods of other schedulers, and autoscalers would treat the node as
// free capacity. A node that has no taint after taintGrace is used without the taint, and the gatekeeper reports a
// problem. If the scheduler has never seen the taint on a burst node, there may be no controller. It then uses the node
// at once.
func (pl *PoolPriority) awaitsTaint(node *v1.Node) bool {
	if pl.pools.HasGateTaint(node) {
		pl.gateTaintSeen.Store(true)
		return false
	}
	now := pl.clock.Now()
	if !pl.gateTaint || !pl.gateTaintSeen.Load() || now.Sub(node.CreationTimestamp.Time) >= taintGrace {
		return false
	}
	met, _ := pl.untainted.LoadOrStore(node.UID, now) // our clock may be behind the API server's
	return now.Sub(met.(time.Time)) < taintGrace
}

// asOnBurstNode returns a copy of the pod with added tolerations: those that pods get on nodes of burst pool i.
func (pl *PoolPriority) asOnBurstNode(pod *v1.Pod, i int) *v1.Pod {
	shallow := *pod
	shallow.Spec.Tolerations = slices.Concat(pod.Spec.Tolerations, pl.given[i])
	return &shallow
}

// isRepelled reports whether an anti-affinity of other pods may keep the cycle's pod off nodes, also off new ones. It is
// true for all pods with a required affinity, too.
func (pl *PoolPriority) isRepelled(state fwk.CycleState) bool {
	return pl.filters.Has(names.InterPodAffinity) && !state.GetSkipFilterPlugins().Has(names.InterPodAffinity)
}

// PostFilter runs before preemption. If a cycle was narrowed to a feasible node and still failed, the pod has usually
// lost a race with a nominated pod. The pod is then retried without preemption. A pod that a closed gate rejected
// becomes a held pod, and the gatekeeper requeues it when the gate opens. So does a pod for which the gate is open in
// vain. If the gate is closed only for a moment, the pod does not preempt other pods.
func (pl *PoolPriority) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if pl.leadership != nil && pl.leadership.Ended(time.Now()) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, lease.ErrNotLeading.Error()) // preemption is up to the new leader
	}
	c, err := readCycle(state)
	if pl.gatekeeper != nil {
		pl.gatekeeper.Failed(pod, err == nil && !c.rejected)
	}
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	logger := klog.FromContext(ctx)
	if c.narrowed {
		pl.retry(logger, pod)
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	}
	pl.retries.Remove(pod.UID)
	if c.flags.gateClosed.Load() || pl.holds && c.search != nil { // if the gate is open, no burst node takes the pod
		pl.gatekeeper.Hold(logger, pod, &c.decision, c.wait, pl.isRepelled(state))
	}
	if c.search != nil && pl.byLoop && c.leftOut == nil { // the loop takes pods of a kind for equal
		if _, local := c.search.key(); local {
			pl.gatekeeper.Held().Local(pod.UID)
		}
	}
	if c.flags.awaitsGateTaint.Load() {
		// If the controller adds the taint, the node's update event requeues the pod. Without the taint there is no
		// event, so this timer requeues the pod.
		time.AfterFunc(taintGrace, func() { pl.activate(logger, pod) })
	}
	if c.flags.passing.Load() || c.flags.awaitsGateTaint.Load() {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable) // stops preemption, which would run after this plugin
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}
