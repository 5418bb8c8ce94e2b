// Package usage sums the number, the CPU and the memory of the pods on each pool's nodes.
package usage

import (
	"math"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Usage has the sum of the pods' usage for each node, including pods of other schedulers. It updates the sums when a
// pod is added, changed or deleted. The cost of a read therefore depends on the number of nodes and not on the number
// of pods. The gauges, the published state and held.Pods.WithinBudgets use these sums. Scheduling cycles use their
// snapshot instead.
type Usage struct {
	mu    sync.Mutex
	pods  map[types.UID]taken
	nodes map[string]ByPriority // by name; nodes without pods are left out
	// ending has the number of terminating pods by the node's name.
	ending map[string]int
}

// New returns a Usage without pods.
func New() *Usage {
	return &Usage{pods: map[types.UID]taken{}, nodes: map[string]ByPriority{}, ending: map[string]int{}}
}

// taken is the usage of one pod.
type taken struct {
	node     string
	priority int32
	ending   bool
	Load
}

// Load is the usage of pods. Requests is what the pods request, and Billed is what Azure Container Instances bills for
// them. The node's pool determines which of the two amounts applies. Load has both amounts, because the informers may
// deliver a pod before its node, so that the pool is still unknown.
type Load struct{ Requests, Billed aci.Use }

// ByPriority is the usage of pods, by their priority. Priorities without pods are left out.
type ByPriority []struct {
	Priority int32
	Load
}

// Plus returns the usage plus n times the load of a pod of the priority. n is 1 or -1. It does not change u.
func (u ByPriority) Plus(priority int32, n int, load Load) ByPriority {
	sums := make(ByPriority, 0, len(u)+1)
	for _, of := range u {
		if of.Priority == priority {
			load, n = of.plus(n, load), 1
		} else {
			sums = append(sums, of)
		}
	}
	if load = (Load{}).plus(n, load); load.Requests.Pods > 0 {
		sums = append(sums, struct {
			Priority int32
			Load
		}{priority, load})
	}
	return sums
}

// From returns what the pods request whose priority is at least the given priority.
func (u ByPriority) From(priority int32) aci.Use {
	var use aci.Use
	for i := range u {
		if u[i].Priority >= priority {
			use = sum(use, 1, u[i].Requests)
		}
	}
	return use
}

// bounded limits the usage of one pod, so that the sum over a million pods cannot overflow.
func bounded(use aci.Use) aci.Use {
	const most = math.MaxInt64 >> 20
	use.MilliCPU, use.Memory = min(use.MilliCPU, most), min(use.Memory, most)
	return use
}

// plus returns the load plus n times the other load. n is 1 or -1.
func (l Load) plus(n int, other Load) Load {
	return Load{sum(l.Requests, n, other.Requests), sum(l.Billed, n, other.Billed)}
}

func sum(a aci.Use, n int, b aci.Use) aci.Use {
	return aci.Use{Pods: a.Pods + n*b.Pods, MilliCPU: a.MilliCPU + int64(n)*b.MilliCPU, Memory: a.Memory + int64(n)*b.Memory}
}

// See processes a pod that was added or changed.
func (u *Usage) See(pod *v1.Pod) {
	now := taken{node: pod.Spec.NodeName, priority: corev1helpers.PodPriority(pod), ending: pod.DeletionTimestamp != nil}
	if now.node != "" {
		now.Load = Load{Requests: aci.UseOf(pod, false), Billed: bounded(aci.UseOf(pod, true))}
		if now.Requests.Pods > 0 { // as NodeInfo counts the pod while it is resized
			requests := resource.PodRequests(pod, resource.PodResourcesOptions{UseStatusResources: true})
			now.Requests = bounded(aci.Use{Pods: 1, MilliCPU: requests.Cpu().MilliValue(), Memory: requests.Memory().Value()})
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if before := u.pods[pod.UID]; before == now {
		return
	}
	u.goneLocked(pod.UID)
	if now.Requests.Pods > 0 {
		u.pods[pod.UID] = now
		u.nodes[now.node] = u.nodes[now.node].Plus(now.priority, 1, now.Load)
		if now.ending {
			u.ending[now.node]++
		}
	}
}

// Draining reports whether pods are terminating on the node.
func (u *Usage) Draining(node string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ending[node] > 0
}

// Gone removes a pod that was deleted.
func (u *Usage) Gone(pod types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.goneLocked(pod)
}

func (u *Usage) goneLocked(pod types.UID) {
	before, ok := u.pods[pod]
	if !ok {
		return
	}
	delete(u.pods, pod)
	if before.ending {
		if u.ending[before.node]--; u.ending[before.node] == 0 {
			delete(u.ending, before.node)
		}
	}
	if left := u.nodes[before.node].Plus(before.priority, -1, before.Load); len(left) > 0 {
		u.nodes[before.node] = left
	} else {
		delete(u.nodes, before.node)
	}
}

// Of returns the usage of the node. The caller must not change it.
func (u *Usage) Of(node string) ByPriority {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nodes[node]
}

// Sums returns the load of each pool's nodes, by the pool's index.
func (u *Usage) Sums(byPool [][]*v1.Node) []Load {
	sums := make([]Load, len(byPool))
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range byPool {
		for _, node := range byPool[i] {
			for _, of := range u.nodes[node.Name] {
				sums[i] = sums[i].plus(1, of.Load)
			}
		}
	}
	return sums
}

// Uses returns the usage of each pool, by the pool's index. For a burst pool on Azure Container Instances, Uses returns
// the billed amount. For any other pool, Uses returns what its pods request.
func (u *Usage) Uses(pools pool.List, byPool [][]*v1.Node) []aci.Use {
	uses := make([]aci.Use, len(byPool))
	for i, load := range u.Sums(byPool) {
		if uses[i] = load.Requests; pools.IsBurst(i) && pools.At(i).OnACI() {
			uses[i] = load.Billed
		}
	}
	return uses
}
