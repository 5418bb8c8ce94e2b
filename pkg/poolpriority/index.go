package poolpriority

import (
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// index holds the facts of the snapshot that the search for a feasible node needs. The plugin refreshes the index at
// the start of each scheduling cycle, and only one cycle runs at a time. Between PreFilter and PostFilter, many
// goroutines read the index.
type index struct {
	pools    pool.List
	profile  string  // the schedulerName of this scheduler's pods
	newest   int64   // the newest generation of any node so far
	changes  int64   // grows when a node changes, comes or goes
	seen     []int64 // the nodes' generations, by position in the snapshot; not in entries, because refresh reads only the generation of most nodes
	entries  []entry // by position in the snapshot
	slots    []int   // the nodes' slots, by position; a node keeps its slot when its position changes (assignSlots)
	ranks    map[*v1.Node]ranked
	tiers    [][]int      // rank -> positions
	next     []int        // rank -> where in the tier the next search starts
	nodes    []gate.Nodes // by regular pool
	podGroup bool         // the last cycle scheduled a pod group
	stale    []int        // positions of nodes that changed after podsByOwner had counted their pods
	owners   podsByOwner

	slotOf    map[string]int // by the node's name
	positions []int          // by the slot, of nodes that are there
	free      []int          // slots that no node has
}

// ranked holds the rank and the pool of a node, which depend on its labels (pool.List.Of).
type ranked struct {
	rank pool.Rank
	pool int
}

type entry struct {
	node *v1.Node
	ranked
	starting bool
	leaving  bool // the node is being removed
	tainted  bool // has a lasting taint
	free     requests
	burst    *burstPods // nil outside burst pools

	scanned bool  // lowest and ending are valid (scan)
	lowest  int32 // the lowest priority of the node's pods
	ending  bool  // has terminating pods

	owned  []ownedPods // the node's pods, as countOwners last counted them
	better bool        // the node was outside burst pools when countOwners last ran
	stale  bool        // the node's position is in index.stale
}

// requests holds the resources that the index compares. No configuration makes NodeResourcesFit ignore these resources.
type requests struct {
	MilliCPU, Memory, Pods int64
}

// requestsOf returns what the pod requests, as NodeResourcesFit counts it.
func (pl *PoolPriority) requestsOf(pod *v1.Pod) requests {
	list := resource.PodRequests(pod, resource.PodResourcesOptions{SkipPodLevelResources: !pl.features.EnablePodLevelResources})
	return requests{MilliCPU: list.Cpu().MilliValue(), Memory: list.Memory().Value(), Pods: 1}
}

// fit reports whether NodeResourcesFit may accept the requests. As in NodeResourcesFit, a request of zero always fits.
func (r requests) fit(free requests) bool {
	return (r.MilliCPU == 0 || r.MilliCPU <= free.MilliCPU) && (r.Memory == 0 || r.Memory <= free.Memory) && r.Pods <= free.Pods
}

func newIndex(pools pool.List, profile string) *index {
	return &index{pools: pools, profile: profile, next: make([]int, pools.Ranks()), nodes: make([]gate.Nodes, pools.Regular()), owners: newPodsByOwner()}
}

// refresh brings the index up to date with the snapshot. All NodeInfos get their generations from one counter, so a
// node whose generation is the same has not changed. The cycle of a pod group is an exception: it adds pods to the
// snapshot's nodes and removes them again, but does not change the nodes' generations. In such a cycle, and in the
// first cycle after it, refresh reads every node.
func (x *index) refresh(nodes []fwk.NodeInfo, podGroup bool) {
	if podGroup || x.podGroup {
		clear(x.seen)
	}
	x.podGroup = podGroup
	rebuild := len(nodes) != len(x.entries)
	if rebuild {
		x.changes++
		x.seen, x.entries = make([]int64, len(nodes)), make([]entry, len(nodes))
		x.stale, x.owners = nil, newPodsByOwner()
	}
	for i, info := range nodes {
		generation := generationOf(info)
		if x.seen[i] == generation {
			continue
		}
		x.seen[i], x.newest = generation, max(x.newest, generation)
		x.changes++
		e := &x.entries[i]
		old := *e
		if !e.stale {
			e.stale = true
			x.stale = append(x.stale, i)
		}
		allocatable, requested := info.GetAllocatable(), info.GetRequested()
		e.node, e.scanned = info.Node(), false
		e.free = requests{
			MilliCPU: allocatable.GetMilliCPU() - requested.GetMilliCPU(),
			Memory:   allocatable.GetMemory() - requested.GetMemory(),
			Pods:     int64(allocatable.GetAllowedPodNumber() - len(info.GetPods())),
		}
		if old.node != e.node {
			e.rank, e.pool = x.pools.RankOf(e.node)
			e.starting, e.leaving, e.tainted = nodegroups.IsStarting(e.node), nodegroups.IsLeaving(e.node), nodegroups.IsTainted(e.node)
			if !rebuild {
				delete(x.ranks, old.node)
				x.ranks[e.node] = e.ranked
			}
		}
		if e.rank != old.rank || !x.pools.IsBurstRank(e.rank) {
			e.burst = nil
		}
		if x.pools.IsBurstRank(e.rank) {
			e.countBurst(info.GetPods(), x.pools.At(e.pool), x.profile)
		}
		if old.node == e.node {
			continue
		}
		if old.node == nil || old.node.Name != e.node.Name || old.ranked != e.ranked || old.starting != e.starting || old.leaving != e.leaving || old.tainted != e.tainted {
			rebuild = true
		}
	}
	if rebuild {
		x.rebuild()
	}
}

// generationOf returns the node's generation. It avoids an interface call, because the compiler cannot inline such a
// call. With interface calls, the loop over all nodes takes twice as long.
func generationOf(info fwk.NodeInfo) int64 {
	if concrete, ok := info.(*framework.NodeInfo); ok { // in practice always
		return concrete.Generation
	}
	return info.GetGeneration()
}

func (x *index) rebuild() {
	x.assignSlots()
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
			if e.leaving {
				x.nodes[e.pool].Leaving++
			}
			if e.tainted {
				x.nodes[e.pool].Tainted++
			}
		}
	}
}

// assignSlots gives each new node a slot that no node has. If there is no such slot, it adds a slot.
func (x *index) assignSlots() {
	old := x.slotOf
	x.slots, x.slotOf = make([]int, len(x.entries)), make(map[string]int, len(x.entries))
	var added []int
	for i := range x.entries {
		name := x.entries[i].node.Name
		slot, ok := old[name]
		if !ok {
			added = append(added, i)
			continue
		}
		delete(old, name)
		x.slots[i], x.slotOf[name] = slot, slot
	}
	x.free = slices.AppendSeq(x.free, maps.Values(old))
	for _, i := range added {
		if len(x.free) == 0 {
			x.free = append(x.free, len(x.positions))
			x.positions = append(x.positions, 0)
		}
		slot := x.free[len(x.free)-1]
		x.free = x.free[:len(x.free)-1]
		x.slots[i], x.slotOf[x.entries[i].node.Name] = slot, slot
	}
	for i, slot := range x.slots {
		x.positions[slot] = i
	}
}

// scan looks at all of the node's pods, if it has not since the node changed. Few cycles need it, and a node may have
// thousands of pods.
func (e *entry) scan(node fwk.NodeInfo) *entry {
	if !e.scanned {
		e.scanned, e.lowest, e.ending = true, math.MaxInt32, false
		for _, p := range node.GetPods() {
			e.lowest = min(e.lowest, corev1helpers.PodPriority(p.GetPod()))
			e.ending = e.ending || p.GetPod().DeletionTimestamp != nil
		}
	}
	return e
}

// named returns the positions of the nodes of the rank that have one of the names, in order.
func (x *index) named(nodes sets.Set[string], rank int) (positions []int) {
	for name := range nodes {
		if slot, ok := x.slotOf[name]; ok && int(x.entries[x.positions[slot]].rank) == rank {
			positions = append(positions, x.positions[slot])
		}
	}
	slices.Sort(positions)
	return positions
}

// rankOf returns the rank and the pool of a node. The node may be missing from the snapshot.
func (x *index) rankOf(node *v1.Node) (pool.Rank, int) {
	if r, ok := x.ranks[node]; ok {
		return r.rank, r.pool
	}
	return x.pools.RankOf(node)
}

// burstPods holds the pods on a burst node. For each pod, it holds how much of a budget the pod uses, and whether the
// pod may still start. sum is the sum of uses without the pods that do not use the pool's budget (aci.IsShared).
// byNamespace has the sum of uses for each namespace. It is nil if the pool has no budget for each namespace.
type burstPods struct {
	profile     string
	pods        []fwk.PodInfo
	uses        []aci.Use
	notStarted  []bool
	sum         aci.Use
	byNamespace map[string]aci.Use
}

// countBurst computes how much of the budgets of the burst pool and its namespaces the node's pods use, and finds the
// pods that may still start. Most of the thousands of pods on a virtual node are unchanged, and only the changed pods
// are added to the sums and removed from them. A changed pod has a new PodInfo. When a pod is removed, the last pod of
// the list takes the position of the removed pod.
func (e *entry) countBurst(pods []fwk.PodInfo, p *pool.Pool, profile string) {
	if e.burst == nil {
		e.burst = &burstPods{profile: profile}
		if p.PerNamespace() != (pool.Limits{}) {
			e.burst.byNamespace = map[string]aci.Use{}
		}
	}
	b := e.burst
	for i, info := range pods {
		switch {
		case i == len(b.pods):
			b.pods, b.uses, b.notStarted = append(b.pods, nil), append(b.uses, aci.Use{}), append(b.notStarted, false)
		case b.pods[i] == info:
			continue
		default:
			b.count(i, -1)
		}
		b.pods[i], b.uses[i], b.notStarted[i] = info, aci.UseOf(info.GetPod(), p.OnACI()).Bounded(), refusal.MayStart(info.GetPod())
		if refusal.IsAbandoned(info.GetPod()) {
			b.uses[i] = aci.Use{}
		}
		b.count(i, 1)
	}
	for i := len(pods); i < len(b.pods); i++ {
		b.count(i, -1)
	}
	clear(b.pods[len(pods):])
	b.pods, b.uses, b.notStarted = b.pods[:len(pods)], b.uses[:len(pods)], b.notStarted[:len(pods)]
}

// count adds the pod with index i to the sums if n is 1, and removes it if n is -1.
func (b *burstPods) count(i, n int) {
	pod := b.pods[i].GetPod()
	if aci.IsShared(pod, b.profile) {
		b.sum = b.sum.Add(n, b.uses[i])
	}
	if b.byNamespace == nil {
		return
	}
	if b.byNamespace[pod.Namespace] = b.byNamespace[pod.Namespace].Add(n, b.uses[i]); b.byNamespace[pod.Namespace] == (aci.Use{}) {
		delete(b.byNamespace, pod.Namespace)
	}
}

// burstUse returns how much of each burst pool's budget is used, by the pool's index. Pods that earlier cycles placed
// and that are not bound yet count, too. Only one cycle runs at a time, so pods never exceed a budget.
func (x *index) burstUse() []aci.Use {
	uses := make([]aci.Use, x.pools.Len())
	for i := range x.pools.Burst() {
		for _, position := range x.tiers[x.pools.RankAt(i)] {
			uses[i] = uses[i].Plus(x.entries[position].burst.sum)
		}
	}
	return uses
}

// share returns how much the namespace uses of its budget in burst pool i, as burstUse counts.
func (x *index) share(i int, namespace string) (use aci.Use) {
	for _, position := range x.tiers[x.pools.RankAt(i)] {
		use = use.Plus(x.entries[position].burst.byNamespace[namespace])
	}
	return use
}

// notStarted calls visit for each pod that may still start on a node of burst pool i, and also for assumed pods. Only
// one cycle runs at a time, so a half-open pool gets one more pod only.
func (x *index) notStarted(i int, visit func(*v1.Pod)) {
	for _, position := range x.tiers[x.pools.RankAt(i)] {
		b := x.entries[position].burst
		for k, info := range b.pods {
			if b.notStarted[k] {
				visit(info.GetPod())
			}
		}
	}
}
