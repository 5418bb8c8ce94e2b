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

// cycle holds what is decided for a pod before Filter. Filter only reads it, except for the flags.
type cycle struct {
	worst       pool.Rank        // nodes ranked below it are rejected
	narrowed    bool             // worst is the best rank that has a feasible node
	widened     bool             // nodes of all ranks pass, because narrowed cycles failed
	fromCache   bool             // the cached diagnosis ended the cycle: no node is feasible
	rejected    bool             // no node is checked: another PreFilter plugin rejected the pod, or narrowing.go has not run yet
	pool        int              // the pool of that rank
	found       sets.Set[string] // nodes of that rank; at least one is feasible
	decision    gate.Decision
	rollout     held.RolloutStatus
	victims     *held.Reservation // the place that the pod's preemption victims are leaving, if it has any
	reservation *held.Reservation // what the pod waits for, if the gate is closed because of that

	nodes  []fwk.NodeInfo // the snapshot
	search *search        // set only if the profile is wrapped

	flags *flags
}

// flags records what Filter found. The copies of a cycle share it.
type flags struct {
	// gateClosed is set when this plugin rejected a node only because the gate was closed.
	gateClosed atomic.Bool
	// passing is set when such a gate is closed only for a moment.
	passing atomic.Bool
	// awaitsGateTaint is set when a burst node was rejected because it is new and has no gate taint yet.
	awaitsGateTaint atomic.Bool
	// unproven is set when a node was rejected because the search for the best rank failed.
	unproven atomic.Bool
	// withNominated has the names of nodes that were filtered together with the pods that are nominated to them.
	withNominated sync.Map
}

// Clone implements the mandatory Clone interface. We don't really copy the data, because nothing changes it after
// PreFilter, and because what Filter finds in a copy counts for the cycle.
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

// PreFilter has the gate decide and, with the strict order, finds the best rank that has a feasible node. It returns
// some nodes of that rank. If no node is feasible it returns all nodes, so that statuses and preemption are as without
// the plugin.
func (pl *PoolPriority) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if _, err := state.Read(stateKey); err == nil {
		// This is the run inside nestedSearch. Skip would switch off our Filter there.
		return nil, nil
	}
	pl.index.refresh(nodes, inPodGroupCycle(state))
	c := &cycle{worst: anyRank, flags: &flags{}, nodes: nodes, rejected: pl.wrapped}
	state.Write(stateKey, c)
	if pl.gatekeeper != nil {
		pl.gatekeeper.Lead()
		c.decision = pl.decide(pod, gate.Wait{})
	}
	if pl.wrapped { // narrowing.go goes on from here after all PreFilter plugins
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

// inPodGroupCycle reports whether the cycle is one of a pod group, which Kubernetes has since 1.36.
func inPodGroupCycle(state fwk.CycleState) bool {
	s, ok := state.(interface{ IsPodGroupSchedulingCycle() bool })
	return ok && s.IsPodGroupSchedulingCycle()
}

// choose completes the cycle with the best rank that has a feasible node. It calls newSearch at most once. The search
// runs Filter, and the cycle has no rank until the search is over.
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
		// Either a PreFilter plugin rejects the pod in the outer run, too, and Filter will not be called, or something
		// changed between the runs. No node may be used while the best rank is unknown. PostFilter requeues the pod.
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
		c.worst, c.narrowed, c.pool, c.found = found.rank, true, pl.pools.PoolAt(found.rank), found.nodes
		klog.FromContext(ctx).V(5).Info("Found room", "pod", klog.KObj(pod), "rank", found.rank, "nodes", len(found.nodes))
	}
	return nil
}

// mayWait reports whether there may be something that the pod can wait for instead of bursting.
func (c *cycle) mayWait() bool { return c.victims != nil || c.rollout.Possible() }

// findBest returns nodes of the best rank that has a feasible node. If that is the rank of a burst pool, and the pod
// has preempted other pods or is a new pod of a rollout, the gate decides again, with what the pod could wait for
// instead.
func (pl *PoolPriority) findBest(ctx context.Context, c *cycle, search *search) (tier, error) {
	found, err := search.best(ctx, &c.decision)
	if err != nil || found.nodes == nil || !pl.pools.IsBurstRank(found.rank) || !c.mayWait() {
		return found, err
	}
	if c.decision.Burst[pl.pools.PoolAt(found.rank)].Observed {
		return found, nil // the gate would be closed already without mode Observe
	}
	reservation := c.victims
	if reservation == nil {
		reservation, err = search.reservation(ctx, c.rollout)
	}
	if err != nil || reservation == nil {
		return found, err
	}
	c.decision = pl.decide(search.pod, reservation.Wait)
	found, err = search.best(ctx, &c.decision) // the gate stays open for a pod whose waitLimit is over
	if err == nil && found.nodes == nil && c.decision.Closes(reservation.Reason) {
		c.reservation = reservation
	}
	return found, err
}

// decide returns the decision of the gate by the cycle's snapshot and by what the pod waits for.
func (pl *PoolPriority) decide(pod *v1.Pod, wait gate.Wait) gate.Decision {
	return pl.gatekeeper.Decide(pod, gatekeeper.Snapshot{Burst: pl.index.burstUse(), Nodes: pl.index.nodes, NotStarted: pl.index.notStarted}, wait)
}

// conclude counts the final decision of the gate. If the pod might have waited and got no reservation, it releases any
// earlier one.
func (pl *PoolPriority) conclude(ctx context.Context, c *cycle, pod *v1.Pod) {
	if pl.gatekeeper == nil {
		return
	}
	for i := range pl.pools.Burst() {
		v, decision := &c.decision.Burst[i], "closed" // also if mode Observe leaves the gate open
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

// PreFilterExtensions returns nil: the decision does not depend on the pods that preemption adds and removes.
func (pl *PoolPriority) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

var errRejected = errors.New("rejected by a PreFilter plugin")

// nestedSearch runs the PreFilter plugins on a separate state and returns a search with that state. Only a full run
// shows which Filter plugins are skipped, and a Filter whose PreFilter returned Skip must not be called. If a PreFilter
// plugin rejects the pod, it returns errRejected.
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
