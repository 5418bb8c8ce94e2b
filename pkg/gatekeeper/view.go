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
	v.SchedulerName, v.Installation = g.config.SchedulerName, g.config.Args.Installation
	v.Available, v.Unlisted, v.Usage = g.fullness()
	v.Burst = g.use()
	v.Waits, v.Held = g.held.published(g.config.Pools)
	return v
}

// fullness counts the nodes of each pool, by its index, that are ready and not cordoned, and those in no pool; and says how full each pool is, once the pods are known. A burst
// pool's node offers what somebody made up, and none of that is said.
func (g *Gatekeeper) fullness() (available []int, unlisted int, usage []published.Usage) {
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		nodes = nil // a lister of everything does not fail
	}
	n := g.config.Pools.Len()
	byNode, offered := make(map[string]int, len(nodes)), make([]aci.Use, n)
	available, usage = make([]int, n), make([]published.Usage, n)
	for _, node := range nodes {
		i := g.config.Pools.Of(node.Labels)
		if i == pool.None {
			unlisted++
			continue
		}
		byNode[node.Name] = i
		if nodegroups.IsReady(node) && !node.Spec.Unschedulable {
			available[i]++
		}
		offered[i] = offered[i].Plus(aci.Use{MilliCPU: node.Status.Allocatable.Cpu().MilliValue(), Memory: node.Status.Allocatable.Memory().Value()})
	}
	if !g.usage.hasSynced() {
		return available, unlisted, nil
	}
	for i, load := range g.usage.sums(n, byNode) {
		usage[i] = published.Usage{Pods: load.requests.Pods, Requested: resourcesOf(load.requests)}
		if !g.config.Pools.IsBurst(i) {
			usage[i].Allocatable = resourcesOf(offered[i])
		}
	}
	return available, unlisted, usage
}

// resourcesOf is the CPU and the memory of the use.
func resourcesOf(use aci.Use) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(use.MilliCPU, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(use.Memory, resource.BinarySI)}
}

// use counts what is on the nodes of burst pools, by the pool's index.
func (g *Gatekeeper) use() []aci.Use {
	uses := make([]aci.Use, g.config.Pools.Len())
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		nodes = nil // a lister of everything does not fail
	}
	byNode := make(map[string]int, len(nodes)) // the index of the burst pool
	for _, node := range nodes {
		if i := g.config.Pools.Of(node.Labels); g.config.Pools.IsBurst(i) {
			byNode[node.Name] = i
		}
	}
	pods, err := g.pods.List(labels.Everything())
	if err != nil {
		pods = nil
	}
	for _, pod := range pods {
		if i, ok := byNode[pod.Spec.NodeName]; ok {
			uses[i] = uses[i].Plus(aci.UseOf(pod, g.config.Pools.At(i).OnACI()))
		}
	}
	return uses
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
		if gate.Lookup(r.code).Kind == gate.Earlier || r.code == gate.ReasonUnseen.Code {
			if k := slices.IndexFunc(decision.Regular, func(p gate.Verdict) bool { return !p.Open }); k >= 0 {
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
