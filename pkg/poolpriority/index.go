package poolpriority

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

// index is what the search for a feasible node needs of the snapshot. It is refreshed at the start of a scheduling
// cycle, and cycles are serial; within a cycle it is only read, by many goroutines.
type index struct {
	pools   pool.List
	seen    []int64 // the nodes' generations, by position in the snapshot: beside one another, for most are only compared
	entries []entry // by position in the snapshot
	ranks   map[*v1.Node]ranked
	tiers   [][]int      // rank -> positions
	next    []int        // rank -> where in the tier the next search starts
	nodes   []gate.Nodes // by regular pool
	version int          // rises when an entry changes
}

// ranked is what a node's labels say.
type ranked struct {
	rank pool.Rank
	pool int
}

type entry struct {
	node *v1.Node
	ranked
	starting bool
	ending   bool // has pods that are ending; not looked at in burst pools
	free     requests
}

// requests are the resources that the index compares: those that NodeResourcesFit never ignores.
type requests struct {
	MilliCPU, Memory, Pods int64
}

func podRequests(pod *v1.Pod) requests {
	list := resource.PodRequests(pod, resource.PodResourcesOptions{})
	return requests{MilliCPU: list.Cpu().MilliValue(), Memory: list.Memory().Value(), Pods: 1}
}

// fit reports whether NodeResourcesFit might let the requests pass. Like it, a request of zero always fits.
func (r requests) fit(free requests) bool {
	return (r.MilliCPU == 0 || r.MilliCPU <= free.MilliCPU) && (r.Memory == 0 || r.Memory <= free.Memory) && r.Pods <= free.Pods
}

func newIndex(pools pool.List) *index {
	return &index{pools: pools, next: make([]int, pools.Ranks()), nodes: make([]gate.Nodes, pools.Regular())}
}

// refresh brings the index up to date with the snapshot. A NodeInfo's generation is from a counter that all share, so
// an equal one means the same node in the same state.
func (x *index) refresh(nodes []fwk.NodeInfo) {
	rebuild := len(nodes) != len(x.entries)
	if rebuild {
		x.seen, x.entries = make([]int64, len(nodes)), make([]entry, len(nodes))
	}
	for i, info := range nodes {
		generation := generationOf(info)
		if x.seen[i] == generation {
			continue
		}
		x.seen[i] = generation
		e := &x.entries[i]
		old := *e
		x.version++
		e.fill(info)
		if old.node != e.node {
			e.rank, e.pool = x.pools.RankOf(e.node.Labels)
			e.starting = capacity.IsStarting(e.node)
			if !rebuild {
				delete(x.ranks, old.node)
				x.ranks[e.node] = e.ranked
			}
		}
		e.ending = int(e.rank) <= x.pools.Regular() && slices.ContainsFunc(info.GetPods(), isEnding)
		if old.node == e.node {
			continue
		}
		if old.node == nil || old.node.Name != e.node.Name || old.rank != e.rank || old.starting != e.starting {
			rebuild = true
		}
	}
	if rebuild {
		x.rebuild()
	}
}

// generationOf is the node's generation. A call by way of the interface, which the compiler cannot look into, makes the walk over all
// nodes take twice as long.
func generationOf(info fwk.NodeInfo) int64 {
	if concrete, ok := info.(*framework.NodeInfo); ok { // it always is
		return concrete.Generation
	}
	return info.GetGeneration()
}

func isEnding(info fwk.PodInfo) bool { return info.GetPod().DeletionTimestamp != nil }

func (e *entry) fill(info fwk.NodeInfo) {
	e.node = info.Node()
	allocatable, requested := info.GetAllocatable(), info.GetRequested()
	e.free = requests{
		MilliCPU: allocatable.GetMilliCPU() - requested.GetMilliCPU(),
		Memory:   allocatable.GetMemory() - requested.GetMemory(),
		Pods:     int64(allocatable.GetAllowedPodNumber() - len(info.GetPods())),
	}
}

func (x *index) rebuild() {
	x.ranks = make(map[*v1.Node]ranked, len(x.entries))
	x.tiers = make([][]int, x.pools.Ranks())
	x.nodes = make([]gate.Nodes, x.pools.Regular())
	for i := range x.entries {
		e := &x.entries[i]
		x.ranks[e.node] = e.ranked
		if e.rank != pool.Excluded {
			x.tiers[e.rank] = append(x.tiers[e.rank], i)
		}
		if e.pool != pool.None && e.pool < len(x.nodes) {
			x.nodes[e.pool].All++
			if e.starting {
				x.nodes[e.pool].Starting++
			}
		}
	}
}

// burstPods is the number of pods on the nodes of each burst pool. Pods that were placed in earlier cycles and are not
// bound yet are among them: with serial cycles, a budget that goes by it is never overshot.
func (x *index) burstPods(nodes []fwk.NodeInfo) []int {
	counts := make([]int, x.pools.Len()-x.pools.Regular())
	for b := range counts {
		for _, position := range x.tiers[x.pools.Regular()+1+b] {
			counts[b] += len(nodes[position].GetPods())
		}
	}
	return counts
}

// rankOf returns the rank and the pool of a node, which need not be in the snapshot.
func (x *index) rankOf(node *v1.Node) (pool.Rank, int) {
	if r, ok := x.ranks[node]; ok {
		return r.rank, r.pool
	}
	return x.pools.RankOf(node.Labels)
}
