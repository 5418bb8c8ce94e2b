package poolpriority

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"poolpriority.dev/scheduler/pkg/pool"
)

// maxNodes is how many feasible nodes the search looks for. kube-scheduler then filters and scores only these nodes.
// Its constant minFeasibleNodesToFind has the same value.
const maxNodes = 100

// search looks for feasible nodes for one pod.
type search struct {
	pl          *PoolPriority
	state       fwk.CycleState
	pod         *v1.Pod
	nodes       []fwk.NodeInfo
	only        sets.Set[string] // the nodes that other PreFilters allow; nil allows all
	order       *pool.Order      // of the pod
	request     requests
	byResources bool                               // NodeResourcesFit runs for the pod
	affinity    *nodeaffinity.RequiredNodeAffinity // nil if NodeAffinity does not run for the pod
	burstOnly   bool                               // only burst nodes can be feasible
	known       *cachedDiagnosis                   // nil if the cache does not have the pod's key
	key         func() (key string, local bool)    // filterKey, computed once
	version     int64                              // grows when any node, pod on a node or namespace changes
}

// newSearch returns a search for feasible nodes. All PreFilter plugins must have run with the state, and allowed is
// their result. The plugin's data in the state (type cycle) decides which nodes its own Filter accepts.
func (pl *PoolPriority) newSearch(state fwk.CycleState, pod *v1.Pod, c *cycle, allowed *fwk.PreFilterResult) *search {
	s := &search{pl: pl, state: state, pod: pod, nodes: c.nodes, request: pl.requestsOf(pod), version: pl.index.changes + c.namespaces}
	s.key = sync.OnceValues(s.filterKey)
	s.order, _ = pl.pools.OrderOf(pod.Annotations)
	if !allowed.AllNodes() {
		s.only = allowed.NodeNames
	}
	skipped := state.GetSkipFilterPlugins()
	// A pod with a node wants a larger size there (since 1.37), and the node counts its present size.
	s.byResources = pl.filters.Has(names.NodeResourcesFit) && !skipped.Has(names.NodeResourcesFit) && pod.Spec.NodeName == ""
	if pl.filters.Has(names.NodeAffinity) && !skipped.Has(names.NodeAffinity) {
		affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
		s.affinity = &affinity
	}
	return s
}

// best returns the best rank that has a feasible node, and some nodes of that rank. At least one of these nodes is
// feasible. The result has no nodes if no node is feasible. Burst pools that the cycle's decision closes are left out. Burst
// nodes count as hosts only while burst pools are searched, and if the result is a burst pool.
func (s *search) best(ctx context.Context, c *cycle) (tier, error) {
	pools := s.pl.pools
	for place := range s.pl.index.tiers {
		r := s.order.RankAt(place)
		if pools.IsBurstRank(r) && !c.decision.Burst[pools.PoolAt(r)].Open || s.burstOnly && !pools.IsBurstRank(r) || c.leavesOut(pools.PoolAt(r)) {
			continue
		}
		if err := c.hosts.count(pools.IsBurstRank(r)); err != nil {
			return tier{}, err
		}
		found, err := s.tier(ctx, int(r))
		if err != nil || found != nil {
			return tier{r, found}, err
		}
	}
	return tier{}, nil
}

// tier lists nodes of one rank by name.
type tier struct {
	rank  pool.Rank
	nodes sets.Set[string]
}

// mayPass reports whether the node may be feasible. It calls no Filter plugins.
func (s *search) mayPass(position int) bool {
	return (!s.byResources || s.request.fit(s.pl.index.entries[position].free)) && s.allows(position)
}

// allows reports whether PreFilter plugins and the pod's required node affinity allow the node.
func (s *search) allows(position int) bool {
	e := &s.pl.index.entries[position]
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

// tier returns the names of some nodes of the rank, at least one of them feasible. It returns nil if no node of the
// rank is feasible.
func (s *search) tier(ctx context.Context, rank int) (sets.Set[string], error) {
	positions, start := s.pl.index.tiers[rank], s.pl.index.next[rank]
	few := s.only != nil && len(s.only) <= maxNodes // to sort more takes longer than to find maxNodes of them
	if few {
		positions = s.pl.index.named(s.only, rank)
	}
	if few || start >= len(positions) {
		start = 0
	}
	var buffer [maxNodes]int
	candidates := buffer[:0]
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
			if !few {
				s.pl.index.next[rank] = (start + i) % len(positions)
			}
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

// rest checks many nodes in parallel. It returns the names of feasible nodes, or nil if no node is feasible.
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
	status, _ := runFilters(ctx, s.pl.handle, s.state, s.pod, s.nodes[position])
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
