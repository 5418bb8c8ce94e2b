// Package usage sums the number, the CPU and the memory of the pods on each pool's nodes.
package usage

import (
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// Usage has the sum of the pods' usage for each node, including pods of other schedulers. It updates the sums when a
// pod is added, changed or deleted. The cost of a read therefore depends on the number of nodes and not on the number
// of pods. The gauges, the published state and held.Pods.WithinBudgets use these sums. Scheduling cycles use their
// snapshot instead.
type Usage struct {
	scheduler string

	mu     sync.Mutex
	pods   map[types.UID]*v1.Pod // as they are counted; what they use takes six times the memory
	nodes  map[string]ByPriority // by name; nodes without pods are left out
	shares map[string]shares     // by the node's name; nodes without shares are left out
	ending map[string]int        // how many pods are terminating, by the node's name
	// By the node's name, served has the nodes that took a pod older than the node, and daemons has what pods of DaemonSets
	// and static pods request.
	served  map[string]service
	daemons map[string]aci.Use
}

// service is when the node with the UID last took a pod older than the node.
type service struct {
	node types.UID
	at   time.Time
}

// shares is the usage of parts of a node's pods, by namespace. The key notShared has the pods that do not use the budget
// of all namespaces (aci.IsShared).
type shares map[string]Load

const notShared = ""

// abandoned is the key of pods that use no budget (refusal.IsAbandoned). No namespace has this name.
const abandoned = "-"

// New returns a Usage without pods. scheduler is the schedulerName of this scheduler's pods.
func New(scheduler string) *Usage {
	return &Usage{scheduler: scheduler, pods: map[types.UID]*v1.Pod{}, nodes: map[string]ByPriority{}, shares: map[string]shares{}, ending: map[string]int{},
		served: map[string]service{}, daemons: map[string]aci.Use{}}
}

// taken is the usage of one pod.
type taken struct {
	node, namespace string
	shared          bool // aci.IsShared
	priority        int32
	ending, daemon  bool
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
			use = use.Add(1, u[i].Requests)
		}
	}
	return use
}

// plus returns the load plus n times the other load. n is 1 or -1.
func (l Load) plus(n int, other Load) Load {
	return Load{l.Requests.Add(n, other.Requests), l.Billed.Add(n, other.Billed)}
}

// usageOf returns the usage of a pod, which depends on nothing else.
func (u *Usage) usageOf(pod *v1.Pod) taken {
	t := taken{node: pod.Spec.NodeName, namespace: pod.Namespace, shared: aci.IsShared(pod, u.scheduler), priority: corev1helpers.PodPriority(pod), ending: pod.DeletionTimestamp != nil, daemon: isDaemon(pod)}
	if refusal.IsAbandoned(pod) {
		t.namespace, t.shared = abandoned, true
	}
	if t.node != "" {
		t.Load = Load{Requests: aci.UseOf(pod, false), Billed: aci.UseOf(pod, true).Bounded()}
		if t.Requests.Pods > 0 { // as NodeInfo counts the pod while it is resized
			requests := resource.PodRequests(pod, resource.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: compat.PodLevelResize})
			t.Requests = aci.Use{Pods: 1, MilliCPU: requests.Cpu().MilliValue(), Memory: requests.Memory().Value()}.Bounded()
		}
	}
	return t
}

// See processes a pod that was added or changed.
func (u *Usage) See(pod *v1.Pod) {
	now := u.usageOf(pod)
	u.mu.Lock()
	defer u.mu.Unlock()
	if before, ok := u.pods[pod.UID]; ok && u.usageOf(before) == now {
		u.pods[pod.UID] = pod // the informer no longer has the other
		return
	}
	u.goneLocked(pod.UID)
	if now.Requests.Pods > 0 {
		u.pods[pod.UID] = pod
		u.countLocked(&now, 1)
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
	if counted, ok := u.pods[pod]; ok {
		before := u.usageOf(counted)
		delete(u.pods, pod)
		u.countLocked(&before, -1)
	}
}

// countLocked adds the pod to the sums of its node if n is 1, and removes it if n is -1.
func (u *Usage) countLocked(pod *taken, n int) {
	if pod.daemon {
		u.daemons[pod.node] = u.daemons[pod.node].Add(n, pod.Requests)
	}
	if left := u.nodes[pod.node].Plus(pod.priority, n, pod.Load); len(left) > 0 {
		u.nodes[pod.node] = left
	} else {
		delete(u.nodes, pod.node)
		delete(u.served, pod.node)
		delete(u.daemons, pod.node)
	}
	if pod.ending {
		if u.ending[pod.node] += n; u.ending[pod.node] == 0 {
			delete(u.ending, pod.node)
		}
	}
	of := u.shares[pod.node]
	if of == nil {
		of = shares{}
		u.shares[pod.node] = of
	}
	if !pod.shared {
		of.count(notShared, n, pod.Load)
	}
	of.count(pod.namespace, n, pod.Load)
	if len(of) == 0 {
		delete(u.shares, pod.node)
	}
}

func (s shares) count(key string, n int, load Load) {
	if s[key] = s[key].plus(n, load); s[key].Requests.Pods == 0 {
		delete(s, key)
	}
}

// Of returns the usage of the node. The caller must not change it.
func (u *Usage) Of(node string) ByPriority {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nodes[node]
}

// isDaemon reports whether the pod is a DaemonSet's or a static pod.
func isDaemon(pod *v1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// Place notes since when the pod is on the node. See must have processed the pod. If the pod is older than the node and is
// no daemon, the node has served (Served). A pod that was bound before the node was made was on another of this name.
func (u *Usage) Place(pod *v1.Pod, node *v1.Node, bound time.Time) {
	made := node.CreationTimestamp.Time
	if isDaemon(pod) || !pod.CreationTimestamp.Time.Before(made) || bound.Before(made) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if last := u.served[node.Name]; u.nodes[node.Name] != nil && (last.node != node.UID || bound.After(last.at)) {
		u.served[node.Name] = service{node.UID, bound}
	}
}

// Served returns what the node has for pods beside daemons, and when it last served (nodegroups.Service). If it has not
// served, the list is nil.
func (u *Usage) Served(node *v1.Node) (v1.ResourceList, time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	served, ok := u.served[node.Name]
	if !ok || served.node != node.UID {
		return nil, time.Time{}
	}
	room, daemons := v1.ResourceList{}, u.daemons[node.Name]
	maps.Copy(room, node.Status.Allocatable)
	for name, taken := range map[v1.ResourceName]*apiresource.Quantity{
		v1.ResourceCPU: apiresource.NewMilliQuantity(daemons.MilliCPU, apiresource.DecimalSI), v1.ResourceMemory: apiresource.NewQuantity(daemons.Memory, apiresource.BinarySI),
	} {
		left := room[name].DeepCopy()
		left.Sub(*taken)
		room[name] = left
	}
	return room, served.at
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
			sums[i] = sums[i].plus(-1, u.shares[node.Name][abandoned])
		}
	}
	return sums
}

// Uses returns the usage of each pool, by the pool's index. For a burst pool on Azure Container Instances, Uses returns
// the billed amount. For any other pool, Uses returns what its pods request. For a burst pool, Uses leaves out the pods
// that do not use the budget of all namespaces (aci.IsShared). byNamespace has the usage of each namespace in the burst
// pools, by the pool's index. It includes the pods that Uses leaves out.
func (u *Usage) Uses(pools pool.List, byPool [][]*v1.Node) (uses []aci.Use, byNamespace []map[string]aci.Use) {
	uses, byNamespace = make([]aci.Use, len(byPool)), make([]map[string]aci.Use, len(byPool))
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range byPool {
		var sum Load
		isBurst, of := pools.IsBurst(i), map[string]aci.Use{}
		billed := isBurst && pools.At(i).OnACI()
		for _, node := range byPool[i] {
			for _, part := range u.nodes[node.Name] {
				sum = sum.plus(1, part.Load)
			}
			for key, load := range u.shares[node.Name] {
				if key == abandoned || isBurst && key == notShared {
					sum = sum.plus(-1, load)
				} else if isBurst {
					of[key] = of[key].Add(1, load.use(billed))
				}
			}
		}
		uses[i], byNamespace[i] = sum.use(billed), of
	}
	return uses, byNamespace
}

// use returns what is billed for the pods, or what they request.
func (l Load) use(billed bool) aci.Use {
	if billed {
		return l.Billed
	}
	return l.Requests
}
