// Package usage adds up what the pods on the nodes of each pool take.
package usage

import (
	"math"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Usage is what the pods on each node take, whoever's they are: added up as they come, change and go, so that asking
// costs something for each node and nothing for each pod. It is for figures and for requeueing: the gate goes by the
// scheduling cycle's snapshot.
type Usage struct {
	mu    sync.Mutex
	pods  map[types.UID]taken
	nodes map[string]Load // by name; without those that have no pods
}

// New returns one that knows of no pod.
func New() *Usage { return &Usage{pods: map[types.UID]taken{}, nodes: map[string]Load{}} }

// taken is the usage of one pod.
type taken struct {
	node string
	Load
}

// Load is what pods take: as Kubernetes counts it, and as Azure Container Instances bills it. The node's pool says
// which of them counts, and the node may be heard of later than the pod.
type Load struct{ Requests, Billed aci.Use }

// bounded limits what one pod counts for, so that the sum over a million pods does not overflow.
func bounded(use aci.Use) aci.Use {
	const most = math.MaxInt64 >> 20
	use.MilliCPU, use.Memory = min(use.MilliCPU, most), min(use.Memory, most)
	return use
}

// plus adds n times (1 or -1) the other.
func (l Load) plus(n int, other Load) Load {
	return Load{sum(l.Requests, n, other.Requests), sum(l.Billed, n, other.Billed)}
}

func sum(a aci.Use, n int, b aci.Use) aci.Use {
	return aci.Use{Pods: a.Pods + n*b.Pods, MilliCPU: a.MilliCPU + int64(n)*b.MilliCPU, Memory: a.Memory + int64(n)*b.Memory}
}

// See takes in a pod that was added or that changed.
func (u *Usage) See(pod *v1.Pod) {
	now := taken{node: pod.Spec.NodeName}
	if now.node != "" {
		now.Load = Load{Requests: bounded(aci.UseOf(pod, false)), Billed: bounded(aci.UseOf(pod, true))}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if before := u.pods[pod.UID]; before == now {
		return
	}
	u.goneLocked(pod.UID)
	if now.Requests.Pods > 0 {
		u.pods[pod.UID] = now
		u.nodes[now.node] = u.nodes[now.node].plus(1, now.Load)
	}
}

// Gone takes in that a pod was deleted.
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
	if left := u.nodes[before.node].plus(-1, before.Load); left.Requests.Pods > 0 {
		u.nodes[before.node] = left
	} else {
		delete(u.nodes, before.node)
	}
}

// Sums adds up what is on the nodes of each pool, by the pool's index.
func (u *Usage) Sums(byPool [][]*v1.Node) []Load {
	sums := make([]Load, len(byPool))
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range byPool {
		for _, node := range byPool[i] {
			sums[i] = sums[i].plus(1, u.nodes[node.Name])
		}
	}
	return sums
}

// Uses returns the load of each pool, by the pool's index: what is billed in a burst pool on Azure Container Instances,
// and what is requested in any other pool.
func (u *Usage) Uses(pools pool.List, byPool [][]*v1.Node) []aci.Use {
	uses := make([]aci.Use, len(byPool))
	for i, load := range u.Sums(byPool) {
		if uses[i] = load.Requests; pools.IsBurst(i) && pools.At(i).OnACI() {
			uses[i] = load.Billed
		}
	}
	return uses
}
