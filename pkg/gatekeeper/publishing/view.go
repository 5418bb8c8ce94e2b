package publishing

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// maxDeclines bounds the number of autoscaler keys whose declines are published.
const maxDeclines = 500

// status turns the report into the status to publish. The status has all inputs of the gate except the pod, and the
// state from which the next leader starts.
func (p *Publisher) status(r *Report) *published.Status {
	c := &p.config
	byPool, unlisted := c.Nodes()
	uses, shares := c.Usage.Uses(c.Pools, byPool)
	v := &published.View{
		Leader: c.Identity, Version: c.Version, SchedulerName: c.SchedulerName, Installation: c.Pools.Installation(), Args: c.Args, Capacity: *r.View, Override: r.Override,
		Declines: c.Declines.Remembered(maxDeclines), Problems: r.Problems, Unlisted: len(unlisted), Burst: uses,
	}
	clear(v.Burst[:c.Pools.Regular()])
	if c.Pools.LimitsNamespaces() {
		v.Shares = shares
	}
	v.Available, v.Usage = p.fullness(byPool)
	v.Waits, v.Held = c.Held.Published(c.Pools)
	state := &published.Status{View: v, Memory: r.Memory}
	state.Memory.Unschedulable, state.Memory.Ignored = c.Held.UnknownToAPI()
	return state.Fit()
}

// fullness returns, by the pool's index, the usage of the pool and how many of its nodes are ready and not cordoned. It
// leaves out the allocatable resources of burst pools, because they are a configured value and not a real capacity.
func (p *Publisher) fullness(byPool [][]*v1.Node) (available []int, usage []published.Usage) {
	available = make([]int, len(byPool))
	for i, load := range p.config.Usage.Sums(byPool) {
		var offered aci.Use
		for _, node := range byPool[i] {
			if nodegroups.IsReady(node) && !node.Spec.Unschedulable && !nodegroups.IsStarting(node) && !nodegroups.IsLeaving(node) {
				available[i]++
			}
			offered = offered.Plus(aci.Use{MilliCPU: node.Status.Allocatable.Cpu().MilliValue(), Memory: node.Status.Allocatable.Memory().Value()})
		}
		usage = append(usage, published.Usage{Pods: load.Requests.Pods, Requested: resourcesOf(load.Requests)})
		if !p.config.Pools.IsBurst(i) {
			usage[i].Allocatable = resourcesOf(offered)
		}
	}
	return available, usage
}

// resourcesOf returns the CPU and the memory of the usage.
func resourcesOf(use aci.Use) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(use.MilliCPU, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(use.Memory, resource.BinarySI)}
}
