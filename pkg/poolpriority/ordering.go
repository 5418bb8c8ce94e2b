package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/pool"
)

// anyRank is the value of cycle.worst with which Filter rejects no node because of its place.
const anyRank pool.Rank = math.MaxInt

// cycle holds the state of a pod's scheduling cycle. Filter changes only the flags.
type cycle struct {
	began     time.Time        // when PreFilter ran
	counted   []*assumedPod    // the pods that were assumed on better nodes, set by Reserve
	order     *pool.Order      // of the pod
	worst     pool.Rank        // Filter rejects nodes after this place in the order
	narrowed  bool             // worst is the best place that has a feasible node
	widened   bool             // Filter accepts nodes of all ranks, because earlier narrowed cycles failed
	fromCache bool             // the cached diagnosis ended the cycle: no node is feasible
	rejected  bool             // Filter checked no node: another PreFilter plugin rejected the pod, or narrowing.go has not run
	pool      int              // the pool at worst, if narrowed
	found     sets.Set[string] // nodes at worst, if narrowed; at least one is feasible
	decision  gate.Decision
	rollout   held.RolloutStatus
	wait      *gate.Wait // set only if it closed the gate

	nodes   []fwk.NodeInfo         // the snapshot; nil before PreFilter
	leftOut []bool                 // by the pool's index, the pools that the pod leaves out because of denied bindings; nil if there is none
	search  *search                // nil if there was no search
	hosts   *hosts                 // nil if the pod does not spread over hosts
	vain    map[string]*fwk.Status // why Filter rejected burst nodes while they counted as hosts, by the node's name

	flags      *flags
	dryRuns    sync.Map // the results (type dryRun) of the cycle's dry runs of preemption, by the node's name
	below      int32    // only pods of a lower priority are preempted (headroom.go)
	candidates int32    // the number of nodes from which in-tree preemption alone would choose
	namespaces int64    // how many namespaces had come, changed or gone before PreFilter
}

// flags records why Filter rejected nodes.
type flags struct {
	// gateClosed is set when this plugin rejected a node only because the gate was closed.
	gateClosed atomic.Bool
	// passing is set when this plugin rejected a node because of a gate that is closed only for a moment.
	passing atomic.Bool
	// awaitsGateTaint is set when a burst node was rejected because it is new and has no gate taint yet.
	awaitsGateTaint atomic.Bool
	// withNominated has the names of nodes that were filtered together with the pods that are nominated to them.
	withNominated sync.Map
}

// Clone returns the cycle itself, not a copy. After PreFilter, only the flags and the results of dry runs change. Copies
// would have to share them, because what Filter sets in a cloned CycleState must be visible in the original.
func (c *cycle) Clone() fwk.StateData { return c }

// leavesOut reports whether the pod leaves out the pool with index i, which may be pool.None.
func (c *cycle) leavesOut(i int) bool { return c.leftOut != nil && i != pool.None && c.leftOut[i] }

func readCycle(state fwk.CycleState) (*cycle, error) {
	data, _ := state.Read(stateKey)
	if c, ok := data.(*cycle); ok && c.nodes != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%q in cycleState is a %T, or PreFilter has not run", stateKey, data)
}

// newCycle writes a new cycle of the pod to the state, and returns it.
func (pl *PoolPriority) newCycle(state fwk.CycleState, pod *v1.Pod) *cycle {
	c := &cycle{worst: anyRank, flags: &flags{}, rejected: true, below: math.MaxInt32, namespaces: pl.namespaces.Load()}
	c.order, _ = pl.pools.OrderOf(pod.Annotations)
	state.Write(stateKey, c)
	return c
}

// PreFilter gets the decision of the gate. After all PreFilter plugins, narrowing.go chooses the pool. In-tree plugins
// may run PreFilter outside of a cycle. Such a run chooses no pool.
func (pl *PoolPriority) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	data, _ := state.Read(stateKey)
	c, ok := data.(*cycle)
	if !ok {
		c = pl.newCycle(state, pod)
	} else if c.nodes != nil {
		return nil, nil // a further run, for hosts
	}
	pl.index.refresh(nodes, inPodGroupCycle(state))
	c.began, c.nodes = pl.clock.Now(), nodes
	c.leftOut = pl.denied.LeftOut(pod.UID, pl.pools.Len(), false, c.began)
	if pl.gatekeeper != nil {
		pl.gatekeeper.Lead()
		c.decision = pl.decide(pod, gate.Wait{})
	}
	return nil, nil
}

// inPodGroupCycle reports whether the cycle schedules a pod group. Kubernetes has such cycles since 1.36.
func inPodGroupCycle(state fwk.CycleState) bool {
	s, ok := state.(interface{ IsPodGroupSchedulingCycle() bool })
	return ok && s.IsPodGroupSchedulingCycle()
}

// choose searches for the best rank that has a feasible node. With the strict order, it narrows the cycle to that rank.
// It calls newSearch at most once. The search also runs this plugin's Filter, so choose sets the rank only after the
// search.
func (pl *PoolPriority) choose(ctx context.Context, c *cycle, pod *v1.Pod, newSearch func() *search) error {
	opens := pl.gatekeeper != nil && c.decision.Opens() // if all gates are closed, a wait changes nothing
	defer pl.conclude(ctx, c, pod, opens)
	if pl.retries.exhausted(pod.UID) {
		c.widened = true
		return nil
	}
	if opens {
		c.rollout = pl.gatekeeper.Rollout(pod)
	}
	if !pl.strict && !c.rollout.Possible() && (!opens || pl.victimsOf(pod, c.nodes) == nil) {
		return nil
	}
	found, err := pl.findBest(ctx, c, newSearch())
	if err == nil && found.nodes == nil {
		c.vain, err = c.hosts.inVain(ctx)
	}
	if err != nil {
		return err
	}
	c.flags = &flags{} // flags that were set during the search do not count
	if found.nodes != nil && pl.strict {
		c.worst, c.narrowed, c.pool, c.found = c.order.PlaceOf(found.rank), true, pl.pools.PoolAt(found.rank), found.nodes
		klog.FromContext(ctx).V(5).Info("Found feasible nodes", "pod", klog.KObj(pod), "rank", found.rank, "nodes", len(found.nodes))
	}
	return nil
}

// findBest returns nodes of the best rank that has a feasible node. If a burst pool has this rank, findBest checks
// whether the pod can wait for preemption victims or for a rollout, or make room, instead. If it can, the gate decides
// again with this wait, and the search is repeated.
func (pl *PoolPriority) findBest(ctx context.Context, c *cycle, search *search) (tier, error) {
	found, err := search.best(ctx, c)
	if err != nil || found.nodes == nil || !pl.pools.IsBurstRank(found.rank) {
		return found, err
	}
	burst := pl.pools.PoolAt(found.rank)
	if c.decision.Burst[burst].Observed {
		return found, nil // without mode: Observe, the gate would already be closed
	}
	wait := pl.victimsOf(search.pod, c.nodes)
	if wait != nil {
		pl.roomTries.Remove(search.pod.UID) // it has got a node
	}
	if wait == nil && c.rollout.Possible() {
		wait = search.forRollout(ctx, c.rollout)
	}
	if wait == nil {
		wait, err = search.room(ctx, c, pl.pools.At(burst).BelowPriority())
	}
	if err != nil || wait == nil {
		return found, errors.Join(err, c.hosts.count(true))
	}
	c.decision = pl.decide(search.pod, *wait)
	found, err = search.best(ctx, c) // the gate stays open for a pod whose waitLimit is over
	if err == nil && found.nodes == nil && c.decision.Closes(wait.Reason) {
		c.wait = wait
	} else if c.below != math.MaxInt32 {
		c.below = math.MaxInt32
		c.dryRuns.Clear() // they were made with the limit
	}
	return found, err
}

// decide returns the decision of the gate. Its inputs are the cycle's snapshot and what the pod waits for.
func (pl *PoolPriority) decide(pod *v1.Pod, wait gate.Wait) gate.Decision {
	return pl.gatekeeper.Decide(pod, gatekeeper.Snapshot{Burst: pl.index.burstUse(), Share: pl.index.share, Nodes: pl.index.nodes, NotStarted: pl.index.notStarted}, wait)
}

// conclude counts the final decision of the gate in the metrics. opened is whether a gate was open before the search. If
// the pod does not wait although one was, conclude ends the wait of an earlier cycle.
func (pl *PoolPriority) conclude(ctx context.Context, c *cycle, pod *v1.Pod, opened bool) {
	if pl.gatekeeper == nil {
		return
	}
	for i := range pl.pools.Burst() {
		v, decision := &c.decision.Burst[i], "closed" // counted even if mode: Observe leaves the gate open
		if v.Open && !v.Observed {
			decision = "open"
		}
		gateDecisions.WithLabelValues(pl.pools.At(i).Name, decision, v.Reason.Code).Inc()
		if v.Observed {
			klog.FromContext(ctx).V(2).Info("Observing: the gate would hold the pod back", "pod", klog.KObj(pod),
				"pool", pl.pools.At(i).Name, "reason", v.Reason.Code, "detail", v.Reason.Detail)
		}
	}
	if (opened || pl.roomTries.count(pod.UID) > 0) && c.wait == nil {
		pl.gatekeeper.Held().Release(pod.UID)
	}
}

// PreFilterExtensions returns nil: the decision does not depend on the pods that preemption adds and removes.
func (pl *PoolPriority) PreFilterExtensions() fwk.PreFilterExtensions { return nil }
