package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// maxNodes is how many nodes a narrowed cycle looks at and scores, as many as the scheduler does at the least.
	maxNodes = 100

	// anyRank lets nodes of all ranks pass.
	anyRank pool.Rank = math.MaxInt
	// noRank lets no node pass.
	noRank pool.Rank = -1
)

// cycle is what PreFilter decided for a pod. Filter only reads it, apart from the flags.
type cycle struct {
	worst    pool.Rank        // nodes ranked below it are rejected
	narrowed bool             // worst is the rank that has room
	pool     int              // that rank's
	found    sets.Set[string] // nodes of that rank, at least one of which has room
	decision gate.Decision
	burst    func() []*v1.Pod // the pod as it is for the nodes of each burst pool, if it comes to that
	room     *room            // what the pod waits for, if that closed the gate

	nodes []fwk.NodeInfo // the snapshot

	flags *flags
}

// flags are what Filter found, shared by the copies of a cycle.
type flags struct {
	// gated is set when a closed gate was all that this plugin had against a node.
	gated atomic.Bool
	// unproven is set when a node was rejected because the search for the best rank failed.
	unproven atomic.Bool
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
	if pl.gate != nil {
		pl.gate.lead()
		c.decision = pl.gate.decide(pod, pl.index.burstPods(nodes), pl.index.nodes, gate.Room{})
		c.burst = sync.OnceValue(func() []*v1.Pod { return pl.asOnBurstNodes(pod) })
	}
	if pl.wrapped { // by what goes on when all PreFilters have run
		state.Write(stateKey, c)
		return nil, nil
	}
	if err := pl.choose(ctx, c, pod, func(proving *cycle) (*search, error) {
		return pl.nestedSearch(ctx, proving, pod)
	}); err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("searching for the best pool: %w", err))
	}
	state.Write(stateKey, c)
	if c.narrowed {
		return &fwk.PreFilterResult{NodeNames: c.found}, nil
	}
	return nil, nil
}

// choose completes what PreFilter decides with the best rank that has room. It asks for a search at most once, by what the proving
// cycle that it gives lets pass.
func (pl *PoolPriority) choose(ctx context.Context, c *cycle, pod *v1.Pod, newSearch func(proving *cycle) (*search, error)) error {
	logger := klog.FromContext(ctx)
	decided := c.decision
	if pl.gate != nil {
		defer func() { recordDecision(pl.pools, &decided) }()
	}
	if pl.observe {
		c.decision = observed(logger, pl.pools, pod, decided)
	}
	var surge surge
	if pl.gate != nil && slices.ContainsFunc(decided.Burst, func(v gate.Verdict) bool { return v.Open }) {
		surge = pl.gate.rollouts.of(pod, pl.gate.clock.Now())
	}
	if surge.may() { // no other pod waits for room, and a room that is left while the gate is closed for all matters to nobody
		defer func() {
			if c.room == nil {
				pl.gate.held.leave(pod.UID)
			}
		}()
	}
	if !pl.strict && !surge.may() {
		return nil
	}
	proving := *c
	proving.flags = &flags{}
	search, err := newSearch(&proving)
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
	rank, found, err := search.best(ctx, &proving.decision)
	if err != nil {
		return err
	}
	if b := int(rank) - pl.pools.Regular() - 1; found != nil && b >= 0 && decided.Burst[b].Open && surge.may() {
		room, err := search.room(ctx, surge)
		if err != nil {
			return err
		}
		if room != nil {
			decided = pl.gate.decide(pod, pl.index.burstPods(c.nodes), pl.index.nodes, room.asRequested())
			if pl.observe {
				observed(logger, pl.pools, pod, decided)
			} else {
				c.decision = decided
				rank, found, err = search.best(ctx, &decided) // one whose waitLimit is over is open still
				if err != nil {
					return err
				}
				if found == nil && slices.ContainsFunc(decided.Burst, func(v gate.Verdict) bool { return v.Reason.Code == room.Reason.Code }) {
					c.room = room
				}
			}
		}
	}
	if found != nil && pl.strict {
		c.worst, c.narrowed, c.pool, c.found = rank, true, pl.pools.PoolAt(rank), found
		logger.V(5).Info("Found room", "pod", klog.KObj(pod), "rank", rank, "nodes", len(found))
	}
	return nil
}

// observed logs what the gate would hold back and returns a decision that holds nothing back.
func observed(logger klog.Logger, pools pool.List, pod *v1.Pod, d gate.Decision) gate.Decision {
	open := gate.Decision{Regular: d.Regular, Burst: slices.Clone(d.Burst)}
	for b := range d.Burst {
		if v := &d.Burst[b]; !v.Open {
			logger.V(2).Info("Observing: the gate would hold the pod back", "pod", klog.KObj(pod),
				"pool", pools.At(pools.Regular()+b).Name, "reason", v.Reason.Code, "detail", v.Reason.Detail)
		}
		open.Burst[b].Open = true
	}
	return open
}

// PreFilterExtensions returns prefilter extensions, pod add and remove.
func (pl *PoolPriority) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

var errRejected = errors.New("rejected by a PreFilter plugin")

// nestedSearch returns a search by a run of its own of the other PreFilters, on a state of its own: only a whole run tells which
// Filters are skipped, and a Filter whose PreFilter said Skip must not be called. It returns errRejected if one rejects the pod.
func (pl *PoolPriority) nestedSearch(ctx context.Context, proving *cycle, pod *v1.Pod) (*search, error) {
	state := framework.NewCycleState()
	state.Write(stateKey, proving)
	result, status, _ := pl.handle.RunPreFilterPlugins(ctx, state, pod)
	if status.IsRejected() {
		return nil, errRejected
	} else if !status.IsSuccess() {
		return nil, status.AsError()
	}
	return pl.newSearch(state, pod, proving.nodes, result), nil
}

// newSearch returns a search for feasible nodes by a state that all PreFilters have run on, with what they allow. The cycle in it says
// what our own Filter lets pass.
func (pl *PoolPriority) newSearch(state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, allowed *fwk.PreFilterResult) *search {
	s := &search{pl: pl, state: state, pod: pod, nodes: nodes, request: podRequests(pod)}
	if !allowed.AllNodes() {
		s.only = allowed.NodeNames
	}
	skipped := state.GetSkipFilterPlugins()
	s.byResources = pl.filters().Has(names.NodeResourcesFit) && !skipped.Has(names.NodeResourcesFit)
	if pl.filters().Has(names.NodeAffinity) && !skipped.Has(names.NodeAffinity) {
		affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
		s.affinity = &affinity
	}
	return s
}

// best returns the best rank that has a feasible node, with the names of some nodes of that rank that may be feasible, one of
// which is. It returns no names if no node is feasible. Burst pools that the decision closes are left out; the proving cycle must
// have them open that it does not.
func (s *search) best(ctx context.Context, decision *gate.Decision) (pool.Rank, sets.Set[string], error) {
	pools := s.pl.pools
	for rank := range s.pl.index.tiers {
		if i := pools.PoolAt(pool.Rank(rank)); i != pool.None && pools.At(i).IsBurst() && !decision.Burst[i-pools.Regular()].Open {
			continue
		}
		found, err := s.tier(ctx, rank)
		if err != nil || found != nil {
			return pool.Rank(rank), found, err
		}
	}
	return 0, nil, nil
}

// search looks for feasible nodes for one pod.
type search struct {
	pl          *PoolPriority
	state       fwk.CycleState
	pod         *v1.Pod
	nodes       []fwk.NodeInfo
	only        sets.Set[string] // the nodes that other PreFilters allow; nil allows all
	request     requests
	byResources bool                               // whether NodeResourcesFit would reject what does not fit
	affinity    *nodeaffinity.RequiredNodeAffinity // what NodeAffinity would reject nodes by; nil if by nothing
}

// mayPass reports whether nothing that the index knows rules the node out.
func (s *search) mayPass(position int) bool {
	e := &s.pl.index.entries[position]
	if s.byResources && !s.request.fit(e.free) {
		return false
	}
	if s.only != nil && !s.only.Has(e.node.Name) {
		return false
	}
	if s.affinity != nil {
		if match, err := s.affinity.Match(e.node); err == nil && !match {
			return false
		}
	}
	return true
}

// tier returns the names of nodes of the rank, at least one of which is feasible, or nil if none is.
func (s *search) tier(ctx context.Context, rank int) (sets.Set[string], error) {
	positions := s.pl.index.tiers[rank]
	start := s.pl.index.next[rank]
	if start >= len(positions) {
		start = 0
	}
	var room [maxNodes]int
	candidates := room[:0]
	i := 0
	for ; i < len(positions) && len(candidates) < maxNodes; i++ {
		if p := positions[(start+i)%len(positions)]; s.mayPass(p) {
			candidates = append(candidates, p)
		}
	}
	for n, p := range candidates {
		feasible, err := s.feasible(ctx, p)
		if err != nil {
			return nil, err
		}
		if feasible {
			s.pl.index.next[rank] = (start + i) % len(positions)
			return s.names(candidates[n:]), nil
		}
	}
	var rest []int
	for ; i < len(positions); i++ {
		if p := positions[(start+i)%len(positions)]; s.mayPass(p) {
			rest = append(rest, p)
		}
	}
	return s.rest(ctx, rest)
}

// rest checks many nodes in parallel and returns the names of feasible ones, or nil if there are none.
func (s *search) rest(ctx context.Context, positions []int) (sets.Set[string], error) {
	if len(positions) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var found []int
	var firstErr error
	s.pl.handle.Parallelizer().Until(ctx, len(positions), func(i int) {
		feasible, err := s.feasible(ctx, positions[i])
		if !feasible && err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil && firstErr == nil {
			firstErr = err
		}
		if feasible {
			found = append(found, positions[i])
		}
		if firstErr != nil || len(found) >= maxNodes {
			cancel()
		}
	}, Name)
	if firstErr != nil || len(found) == 0 {
		return nil, firstErr
	}
	return s.names(found), nil
}

func (s *search) feasible(ctx context.Context, position int) (bool, error) {
	status := runFilters(ctx, s.pl.handle, s.state, s.pod, s.nodes[position])
	if !status.IsSuccess() && !status.IsRejected() {
		return false, status.AsError()
	}
	return status.IsSuccess(), nil
}

func (s *search) names(positions []int) sets.Set[string] {
	found := make(sets.Set[string], len(positions))
	for _, p := range positions {
		found.Insert(s.pl.index.entries[p].node.Name)
	}
	return found
}
