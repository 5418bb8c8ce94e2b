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
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// anyRank is the value of cycle.worst with which Filter rejects no node because of its place.
	anyRank pool.Rank = math.MaxInt
	// noRank is the value of cycle.worst with which Filter rejects all nodes.
	noRank pool.Rank = -1
)

// cycle holds the decisions that are made for a pod before Filter runs. Filter changes only the flags.
type cycle struct {
	began       time.Time        // when PreFilter ran
	counted     []*assumedPod    // the pods that were assumed on better nodes, set by Reserve
	order       *pool.Order      // of the pod
	worst       pool.Rank        // Filter rejects nodes after this place in the order
	narrowed    bool             // worst is the best place that has a feasible node
	widened     bool             // Filter accepts nodes of all ranks, because earlier narrowed cycles failed
	fromCache   bool             // the cached diagnosis ended the cycle: no node is feasible
	rejected    bool             // Filter checked no node: another PreFilter plugin rejected the pod, or narrowing.go has not run
	pool        int              // the pool at worst, if narrowed
	found       sets.Set[string] // nodes at worst, if narrowed; at least one is feasible
	decision    gate.Decision
	rollout     held.RolloutStatus
	victims     *held.Reservation // on the node where the pod's preemption victims are terminating; nil without victims
	reservation *held.Reservation // what the pod waits for; set only if this wait closed the gate

	nodes  []fwk.NodeInfo // the snapshot
	search *search        // set only if the profile is wrapped

	flags   *flags
	dryRuns *sync.Map // the results (type dryRun) of the cycle's dry runs of preemption, by the node's name
}

// flags records why Filter rejected nodes. All copies of a cycle share one flags.
type flags struct {
	// gateClosed is set when this plugin rejected a node only because the gate was closed.
	gateClosed atomic.Bool
	// passing is set when this plugin rejected a node because of a gate that is closed only for a moment.
	passing atomic.Bool
	// awaitsGateTaint is set when a burst node was rejected because it is new and has no gate taint yet.
	awaitsGateTaint atomic.Bool
	// unproven is set when a node was rejected because the search for the best rank failed.
	unproven atomic.Bool
	// withNominated has the names of nodes that were filtered together with the pods that are nominated to them.
	withNominated sync.Map
}

// Clone returns the cycle itself, not a copy. After PreFilter, only the flags and the results of dry runs change. Copies
// would have to share them, because what Filter sets in a cloned CycleState must be visible in the original.
func (c *cycle) Clone() fwk.StateData { return c }

func readCycle(state fwk.CycleState) (*cycle, error) {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil, fmt.Errorf("reading %q from cycleState: %w", stateKey, err)
	}
	c, ok := data.(*cycle)
	if !ok {
		return nil, fmt.Errorf("%q in cycleState is a %T", stateKey, data)
	}
	return c, nil
}

// PreFilter gets the decision of the gate. With the strict order, it also finds the best rank that has a feasible node,
// and returns some nodes of this rank. If no node is feasible, it returns all nodes, so that statuses and preemption
// are the same as without the plugin.
func (pl *PoolPriority) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if _, err := state.Read(stateKey); err == nil {
		// This call comes from nestedSearch. If it returned Skip, the search would not run this plugin's Filter.
		return nil, nil
	}
	pl.index.refresh(nodes, inPodGroupCycle(state))
	c := &cycle{began: pl.clock.Now(), worst: anyRank, flags: &flags{}, dryRuns: &sync.Map{}, nodes: nodes, rejected: pl.wrapped}
	c.order, _ = pl.pools.OrderOf(pod.Annotations)
	state.Write(stateKey, c)
	if pl.gatekeeper != nil {
		pl.gatekeeper.Lead()
		c.decision = pl.decide(pod, gate.Wait{})
	}
	if pl.wrapped { // narrowing.go calls choose after all PreFilter plugins
		return nil, nil
	}
	if err := pl.choose(ctx, c, pod, func() (*search, error) { return pl.nestedSearch(ctx, c, pod) }); err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("searching for the best pool: %w", err))
	}
	if c.narrowed {
		return &fwk.PreFilterResult{NodeNames: c.found}, nil
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
func (pl *PoolPriority) choose(ctx context.Context, c *cycle, pod *v1.Pod, newSearch func() (*search, error)) error {
	defer pl.conclude(ctx, c, pod)
	if pl.retries.exhausted(pod.UID) {
		c.widened = true
		return nil
	}
	if pl.gatekeeper != nil && c.decision.Opens() { // if all gates are closed, a reservation changes nothing
		c.rollout = pl.gatekeeper.Rollout(pod)
		c.victims = pl.victimsOf(pod, c.nodes)
	}
	if !pl.strict && !c.mayWait() {
		return nil
	}
	search, err := newSearch()
	if errors.Is(err, errRejected) {
		// A PreFilter plugin rejected the pod. If the cycle's own run of PreFilter rejects the pod, too, Filter is not
		// called. If the result has changed between the two runs, the best rank is unknown. Filter then rejects all
		// nodes, and PostFilter requeues the pod.
		if c.rejected = true; pl.strict {
			c.worst = noRank
		}
		return nil
	} else if err != nil {
		return err
	}
	found, err := pl.findBest(ctx, c, search)
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

// mayWait reports whether the pod may be able to wait for preemption victims or for a rollout instead of bursting.
func (c *cycle) mayWait() bool { return c.victims != nil || c.rollout.Possible() }

// findBest returns nodes of the best rank that has a feasible node. If a burst pool has this rank, findBest checks
// whether the pod can wait for preemption victims or for a rollout, or make room, instead. If it can, the gate decides
// again with this wait, and the search is repeated.
func (pl *PoolPriority) findBest(ctx context.Context, c *cycle, search *search) (tier, error) {
	found, err := search.best(ctx, &c.decision)
	if err != nil || found.nodes == nil || !pl.pools.IsBurstRank(found.rank) {
		return found, err
	}
	burst := pl.pools.PoolAt(found.rank)
	if c.decision.Burst[burst].Observed {
		return found, nil // without mode: Observe, the gate would already be closed
	}
	reservation := c.victims
	if reservation != nil {
		pl.roomTries.Remove(search.pod.UID) // it has got a node
	}
	if reservation == nil && c.rollout.Possible() {
		reservation, err = search.reservation(ctx, c.rollout)
	}
	if reservation == nil && err == nil {
		reservation, err = search.room(ctx, c, pl.pools.At(burst).BelowPriority())
	}
	if err != nil || reservation == nil {
		return found, err
	}
	c.decision = pl.decide(search.pod, reservation.Wait)
	found, err = search.best(ctx, &c.decision) // the gate stays open for a pod whose waitLimit is over
	if err == nil && found.nodes == nil && c.decision.Closes(reservation.Reason) {
		c.reservation = reservation
	} else if pl.preemption != nil && pl.preemption.below != math.MaxInt32 {
		pl.preemption.below = math.MaxInt32
		c.dryRuns.Clear() // they were made with the limit
	}
	return found, err
}

// decide returns the decision of the gate. Its inputs are the cycle's snapshot and what the pod waits for.
func (pl *PoolPriority) decide(pod *v1.Pod, wait gate.Wait) gate.Decision {
	return pl.gatekeeper.Decide(pod, gatekeeper.Snapshot{Burst: pl.index.burstUse(), Share: pl.index.share, Nodes: pl.index.nodes, NotStarted: pl.index.notStarted}, wait)
}

// conclude counts the final decision of the gate in the metrics. If the pod could have waited but got no reservation in
// this cycle, conclude releases the reservation of an earlier cycle.
func (pl *PoolPriority) conclude(ctx context.Context, c *cycle, pod *v1.Pod) {
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
	if (c.mayWait() || pl.roomTries.count(pod.UID) > 0) && c.reservation == nil {
		pl.gatekeeper.Release(pod.UID)
	}
}

// PreFilterExtensions returns nil: the decision does not depend on the pods that preemption adds and removes.
func (pl *PoolPriority) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

var errRejected = errors.New("rejected by a PreFilter plugin")

// nestedSearch runs the PreFilter plugins on a separate state and returns a search with that state. All PreFilter
// plugins must run, because a plugin's Filter must not be called if its PreFilter returned Skip. If a PreFilter plugin
// rejects the pod, nestedSearch returns errRejected.
func (pl *PoolPriority) nestedSearch(ctx context.Context, c *cycle, pod *v1.Pod) (*search, error) {
	state := framework.NewCycleState()
	state.Write(stateKey, c)
	result, status, _ := pl.handle.RunPreFilterPlugins(ctx, state, pod)
	if status.IsRejected() {
		return nil, errRejected
	} else if !status.IsSuccess() {
		return nil, status.AsError()
	}
	return pl.newSearch(state, pod, c.nodes, result), nil
}
