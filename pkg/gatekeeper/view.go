package gatekeeper

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// maxDeclines is how many kinds of pods are published.
const maxDeclines = 500

// published is what tools are told: all that the gate goes by, but for the pod that asks.
func (g *Gatekeeper) published(view *nodegroups.View) *published.View {
	v := &published.View{
		Leader: g.config.Identity, Version: g.config.Version, Args: g.config.Args, Capacity: *view, Override: g.override.InForce(g.config.Clock.Now()),
		Declines: g.kinds.Remembered(maxDeclines), Problems: g.problems.messages(),
	}
	v.SchedulerName = g.config.SchedulerName
	v.Available, v.Unlisted, v.Usage = g.fullness()
	v.Burst = g.uses()
	clear(v.Burst[:g.config.Pools.Regular()])
	v.Waits, v.Held = g.held.Published(g.config.Pools)
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
