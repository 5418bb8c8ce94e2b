package gatekeeper

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/status"
)

const (
	// maxWaits is how many pods' clocks are looked for to be published: the view has room for fewer.
	maxWaits = 5000
	// maxDeclines is how many kinds of pods are published.
	maxDeclines = 500
)

// published is what tools are told: all that the gate goes by, but for the pod that asks.
func (g *Gatekeeper) published(view *capacity.View) *status.View {
	v := &status.View{
		Leader: g.config.Identity, Version: g.config.Version, Args: g.config.Args, Capacity: *view,
		Declines: g.kinds.Remembered(maxDeclines), Problems: g.problems.messages(),
	}
	v.SchedulerName = g.config.SchedulerName
	v.Available, v.Unlisted = g.available()
	v.Burst, v.Usage = g.use()
	v.Waits, v.Held = g.held.published(g.config.Pools)
	return v
}

// available counts the nodes of each pool, by its index, that are ready and not cordoned, and those in no pool.
func (g *Gatekeeper) available() ([]int, int) {
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		nodes = nil // a lister of everything does not fail
	}
	counts, unlisted := make([]int, g.config.Pools.Len()), 0
	for _, node := range nodes {
		switch i := g.config.Pools.Of(node.Labels); {
		case i == pool.None:
			unlisted++
		case capacity.IsReady(node) && !node.Spec.Unschedulable:
			counts[i]++
		}
	}
	return counts, unlisted
}

// use counts what is on the nodes of the pools, by the pool's index.
func (g *Gatekeeper) use() ([]gate.Use, []status.Usage) {
	uses := make([]gate.Use, g.config.Pools.Len())
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
	now := g.config.Clock.Now()
	for _, pod := range pods {
		i, ok := byNode[pod.Spec.NodeName]
		if !ok {
			continue
		}
		p := g.config.Pools.At(i)
		starting := uses[i].Starting
		uses[i] = uses[i].Plus(gate.UseOf(pod, p))
		if uses[i].Starting = starting; refusal.IsStarting(pod, p.Burst.StartWithin.Duration, now) {
			uses[i].Starting++
		}
	}
	return uses, g.fullness(nodes)
}

// fullness is what the pods on the nodes of each pool request of what those offer, by the pool's index; nil while the pods are not known.
func (g *Gatekeeper) fullness(nodes []*v1.Node) []status.Usage {
	if !g.usage.hasSynced() {
		return nil
	}
	byNode := make(map[string]int, len(nodes))
	offered := make([]struct{ milliCPU, memory int64 }, g.config.Pools.Len())
	for _, node := range nodes {
		i := g.config.Pools.Of(node.Labels)
		if i == pool.None {
			continue
		}
		byNode[node.Name] = i
		offered[i].milliCPU += node.Status.Allocatable.Cpu().MilliValue()
		offered[i].memory += node.Status.Allocatable.Memory().Value()
	}
	resources := func(milliCPU, memory int64) v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU: *resource.NewMilliQuantity(milliCPU, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		}
	}
	usage := make([]status.Usage, len(offered))
	for i, load := range g.usage.sums(len(offered), byNode) {
		usage[i] = status.Usage{
			Pods: load.requests.Pods, Requested: resources(load.requests.MilliCPU, load.requests.Memory), Allocatable: resources(offered[i].milliCPU, offered[i].memory),
		}
	}
	return usage
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
func (h *held) published(pools pool.List) (map[types.UID]status.Wait, status.Held) {
	var summary status.Held
	waits, by := map[types.UID]status.Wait{}, map[reason]int{}
	h.each(func(uid types.UID, entry *heldPod) {
		summary.Total++
		w := h.sinceLocked(entry.pod, h.clocks[uid].ignored)
		summary.Oldest = capacity.Earliest(summary.Oldest, w.unschedulable)
		by[entry.reason]++
		if said := gate.UnschedulableSince(entry.pod); len(waits) < maxWaits && !(isNear(w.unschedulable, said) && isNear(w.noRoom, said) && w.ignored.IsZero()) {
			waits[uid] = status.Wait{Unschedulable: w.unschedulable.UTC(), NoRoom: w.noRoom, Ignored: w.ignored}
		}
	})
	for r, n := range by {
		if r.pool != pool.None {
			summary.By = append(summary.By, status.HeldBy{Pool: pools.At(r.pool).Name, Reason: r.code, Pods: n})
		}
	}
	slices.SortFunc(summary.By, func(a, b status.HeldBy) int {
		return cmp.Or(b.Pods-a.Pods, cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Reason, b.Reason))
	})
	return waits, summary
}

// isNear reports whether the times are the same, but for what clocks may differ.
func isNear(a, b time.Time) bool { return a.Sub(b).Abs() <= clockTolerance }
