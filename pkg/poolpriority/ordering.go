package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

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
	// anyRank lets nodes of all ranks pass.
	anyRank pool.Rank = math.MaxInt
	// noRank lets no node pass.
	noRank pool.Rank = -1
)

// cycle holds what was decided for a pod before Filter, which only reads it, apart from the flags.
type cycle struct {
	worst       pool.Rank        // nodes ranked below it are rejected
	narrowed    bool             // worst is the rank that has room
	widened     bool             // nodes of all ranks pass, because narrowed cycles failed
	fromCache   bool             // the cached diagnosis ended the cycle: no node is feasible
	pool        int              // that rank's
	found       sets.Set[string] // nodes of that rank; at least one is feasible
	decision    gate.Decision
	rollout     held.RolloutStatus
	victims     *held.Reservation // the place that pods leave which the pod preempts, if there are such
	reservation *held.Reservation // what the pod waits for, if that closed the gate

	nodes  []fwk.NodeInfo // the snapshot
	search *search        // of a profile that is wrapped

	flags *flags
}

// flags are what Filter found. The copies of a cycle share them.
type flags struct {
	// gateClosed is set when a closed gate was all that this plugin had against a node.
	gateClosed atomic.Bool
	// passing is set when that gate is closed for a moment only.
	passing atomic.Bool
	// awaitsGateTaint is set when a burst node was rejected because it is new and has no gate taint yet.
	awaitsGateTaint atomic.Bool
	// unproven is set when a node was rejected because the search for the best rank failed.
	unproven atomic.Bool
	// withNominated has the names of nodes that were asked about together with pods that are nominated to them.
	withNominated sync.Map
}

// Clone implements the mandatory Clone interface. We don't really copy the data: it is not changed after PreFilter, and
// what Filter finds in a copy counts for the cycle.
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

// PreFilter asks the gate and, for the strict order, proves which rank is the best that has a feasible node. It returns
// some nodes of that rank, or all nodes if none is feasible: statuses and preemption are then as without the plugin.
func (pl *PoolPriority) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if _, err := state.Read(stateKey); err == nil {
		// This is the run inside nestedSearch. Skip would switch off our Filter there.
		return nil, nil
	}
	pl.index.refresh(nodes)
	c := &cycle{worst: anyRank, flags: &flags{}, nodes: nodes}
	state.Write(stateKey, c)
	if pl.gatekeeper != nil {
		pl.gatekeeper.Lead()
		c.decision = pl.decide(pod, gate.Wait{})
	}
	if pl.wrapped { // narrowing.go goes on from here when all PreFilters have run
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

// choose completes the cycle: which rank is the best that has room. newSearch is called at most once. During the
// search, which has Filter look at nodes, the cycle has no rank yet.
func (pl *PoolPriority) choose(ctx context.Context, c *cycle, pod *v1.Pod, newSearch func() (*search, error)) error {
	defer pl.conclude(ctx, c, pod)
	if pl.retries.exhausted(pod.UID) {
		c.widened = true
		return nil
	}
	if pl.gatekeeper != nil && c.decision.Opens() { // where all gates are closed, a reservation changes nothing
		c.rollout = pl.gatekeeper.Rollout(pod)
		c.victims = pl.victimsOf(pod, c.nodes)
	}
	if !pl.strict && !c.mayWait() {
		return nil
	}
	search, err := newSearch()
	if errors.Is(err, errRejected) {
		// Either the pod was rejected in the outer run too, and Filter will not be called, or something changed
		// between the runs. Without a proof no node may be taken; PostFilter has the pod tried again.
		if pl.strict {
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
	c.flags = &flags{} // what Filter met during the search does not count
	if found.nodes != nil && pl.strict {
		c.worst, c.narrowed, c.pool, c.found = found.rank, true, pl.pools.PoolAt(found.rank), found.nodes
		klog.FromContext(ctx).V(5).Info("Found room", "pod", klog.KObj(pod), "rank", found.rank, "nodes", len(found.nodes))
	}
	return nil
}

// mayWait reports whether there may be something that the pod can wait for instead of bursting.
func (c *cycle) mayWait() bool { return c.victims != nil || c.rollout.Possible() }

// findBest returns nodes of the best rank that has a feasible one. Before a pod goes to a burst pool that has made
// others end, or is a new one of a rollout, the gate decides again, with what the pod could wait for instead.
func (pl *PoolPriority) findBest(ctx context.Context, c *cycle, search *search) (tier, error) {
	found, err := search.best(ctx, &c.decision)
	if err != nil || found.nodes == nil || !pl.pools.IsBurstRank(found.rank) || !c.mayWait() {
		return found, err
	}
	if c.decision.Burst[pl.pools.PoolAt(found.rank)].Observed {
		return found, nil // it is closed already, but for observing
	}
	reservation := c.victims
	if reservation == nil {
		reservation, err = search.reservation(ctx, c.rollout)
	}
	if err != nil || reservation == nil {
		return found, err
	}
	c.decision = pl.decide(search.pod, reservation.Wait)
	found, err = search.best(ctx, &c.decision) // one whose waitLimit is over stays open
	if err == nil && found.nodes == nil && c.decision.Closes(reservation.Reason) {
		c.reservation = reservation
	}
	return found, err
}

// decide asks the gate, by the cycle's snapshot and what the pod waits for.
func (pl *PoolPriority) decide(pod *v1.Pod, wait gate.Wait) gate.Decision {
	return pl.gatekeeper.Decide(pod, gatekeeper.Snapshot{Burst: pl.index.burstUse(), Nodes: pl.index.nodes, NotStarted: pl.index.notStarted}, wait)
}

// conclude notes what the gate decided in the end.
func (pl *PoolPriority) conclude(ctx context.Context, c *cycle, pod *v1.Pod) {
	if pl.gatekeeper == nil {
		return
	}
	for i := range pl.pools.Burst() {
		v, decision := &c.decision.Burst[i], "closed" // whether or not that is only observed
		if v.Open && !v.Observed {
			decision = "open"
		}
		gateDecisions.WithLabelValues(pl.pools.At(i).Name, decision, v.Reason.Code).Inc()
		if v.Observed {
			klog.FromContext(ctx).V(2).Info("Observing: the gate would hold the pod back", "pod", klog.KObj(pod),
				"pool", pl.pools.At(i).Name, "reason", v.Reason.Code, "detail", v.Reason.Detail)
		}
	}
	if c.mayWait() && c.reservation == nil {
		pl.gatekeeper.Release(pod.UID)
	}
}

// PreFilterExtensions returns nil: what was decided does not depend on the pods that preemption plays with.
func (pl *PoolPriority) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

var errRejected = errors.New("rejected by a PreFilter plugin")

// nestedSearch runs the other PreFilters on a state of its own and returns a search with it. Only a whole run shows
// which Filters are skipped, and a Filter whose PreFilter returned Skip must not be called. If a PreFilter rejects the
// pod, it returns errRejected.
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
