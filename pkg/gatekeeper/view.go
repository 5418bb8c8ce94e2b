package gatekeeper

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
)

const (
	// maxWaits is how many pods' clocks are looked for to be published: the view has room for fewer.
	maxWaits = 5000
	// maxDeclines is how many kinds of pods are published.
	maxDeclines = 500
)

// published is what tools are told: all that the gate goes by, but for the pod that asks.
func (g *Gatekeeper) published(view *nodegroups.View) *published.View {
	v := &published.View{
		Leader: g.config.Identity, Version: g.config.Version, Args: g.config.Args, Capacity: *view, Override: g.override.inForce(g.config.Clock.Now()),
		Declines: g.kinds.Remembered(maxDeclines), Problems: g.problems.messages(),
	}
	v.SchedulerName = g.config.SchedulerName
	v.Available, v.Unlisted, v.Usage = g.fullness()
	v.Burst = g.uses()
	clear(v.Burst[:g.config.Pools.Regular()])
	v.Waits, v.Held = g.held.published(g.config.Pools)
	return v
}

// byPool are the nodes of each pool, by its index, and those in no pool.
func (g *Gatekeeper) byPool() (byPool [][]*v1.Node, unlisted []*v1.Node) {
	nodes, _ := g.nodes.List(labels.Everything()) // does not fail
	return g.config.Pools.Group(nodes)
}

// uses is what is on the nodes of each pool, by the pool's index: of a burst pool, as its budget counts it.
func (g *Gatekeeper) uses() []aci.Use {
	byPool, _ := g.byPool()
	uses := make([]aci.Use, len(byPool))
	for i, load := range g.usage.Sums(byPool) {
		uses[i] = load.For(g.config.Pools.At(i))
	}
	return uses
}

// fullness counts the nodes of each pool, by its index, that are ready and not cordoned, and those in no pool; and says how full each pool is. A burst
// pool's node offers what somebody made up, and none of that is said.
func (g *Gatekeeper) fullness() (available []int, unlisted int, usage []published.Usage) {
	byPool, rest := g.byPool()
	available = make([]int, len(byPool))
	for i, load := range g.usage.Sums(byPool) {
		var offered aci.Use
		for _, node := range byPool[i] {
			if nodegroups.IsReady(node) && !node.Spec.Unschedulable {
				available[i]++
			}
			offered = offered.Plus(aci.Use{MilliCPU: node.Status.Allocatable.Cpu().MilliValue(), Memory: node.Status.Allocatable.Memory().Value()})
		}
		usage = append(usage, published.Usage{Pods: load.Requests.Pods, Requested: resourcesOf(load.Requests)})
		if !g.config.Pools.IsBurst(i) {
			usage[i].Allocatable = resourcesOf(offered)
		}
	}
	return available, len(rest), usage
}

// resourcesOf is the CPU and the memory of the use.
func resourcesOf(use aci.Use) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(use.MilliCPU, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(use.Memory, resource.BinarySI)}
}

// reason is what holds a pod: the first regular pool that does, or else the burst pool that is closed, and the burst pool's reason.
type reason struct {
	pool int
	code string
}

// reasonOf is what holds a pod by the decision, of which a gate is closed.
func reasonOf(decision *gate.Decision) reason {
	for i := range decision.Burst {
		v := &decision.Burst[i]
		if v.Open || v.Reason.Code == "" {
			continue
		}
		r := reason{pool: i, code: v.Reason.Code}
		switch v.Reason.Code {
		case gate.ReasonCanGrow.Code, gate.ReasonGrowing.Code, gate.ReasonUnknown.Code, gate.ReasonUnseen.Code:
			if k := slices.IndexFunc(decision.Regular, func(p gate.PoolVerdict) bool { return p.Holds }); k >= 0 {
				r.pool = k
			}
		}
		return r
	}
	return reason{pool: pool.None}
}

// published returns since when pods have waited of which the API does not say it, and counts the held ones.
func (h *held) published(pools pool.List) (map[types.UID]published.Wait, published.Held) {
	var summary published.Held
	waits, by := map[types.UID]published.Wait{}, map[reason]int{}
	h.each(func(uid types.UID, entry *heldPod) {
		summary.Total++
		w := h.sinceLocked(entry.pod, h.clocks[uid].ignored)
		summary.Oldest = nodegroups.Earliest(summary.Oldest, w.unschedulable)
		by[entry.reason]++
		if said := gate.UnschedulableSince(entry.pod); len(waits) < maxWaits && !(isNear(w.unschedulable, said) && isNear(w.noRoom, said) && w.ignored.IsZero()) {
			waits[uid] = published.Wait{Unschedulable: w.unschedulable.UTC(), NoRoom: w.noRoom, Ignored: w.ignored}
		}
	})
	for r, n := range by {
		if r.pool != pool.None {
			summary.By = append(summary.By, published.HeldBy{Pool: pools.At(r.pool).Name, Reason: r.code, Pods: n})
		}
	}
	slices.SortFunc(summary.By, func(a, b published.HeldBy) int {
		return cmp.Or(b.Pods-a.Pods, cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Reason, b.Reason))
	})
	return waits, summary
}

// isNear reports whether the times are the same, but for what clocks may differ.
func isNear(a, b time.Time) bool { return a.Sub(b).Abs() <= clockTolerance }
