package held

import (
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gatekeeper/usage"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Space is a node that may have free capacity for held pods.
type Space struct {
	Node *v1.Node
	// Burst is the index of the node's burst pool, or pool.None. Tolerations are those that a pod gets in this pool.
	Burst       int
	Tolerations []v1.Toleration
	// Used is what the pods on the node request, by priority. WithinSpaces adds the requests of the pods that it
	// chooses.
	Used usage.ByPriority
	// WithinSpaces chooses only pods whose last cycle failed before TriedBefore. On a node outside burst pools, a later
	// cycle of one pod also excludes equal pods.
	TriedBefore time.Time
	// Pending is set if pods were chosen for the node and have not been tried since.
	Pending bool
}

// fits reports whether the node has capacity for one more pod of the kind. Pods that the kind may preempt do not count.
func (s *Space) fits(k *kind) bool {
	allocatable := s.Node.Status.Allocatable
	used := s.Used.From(k.preempts)
	return (k.use.MilliCPU == 0 || k.use.MilliCPU+used.MilliCPU <= allocatable.Cpu().MilliValue()) &&
		(k.use.Memory == 0 || k.use.Memory+used.Memory <= allocatable.Memory().Value()) &&
		int64(1+used.Pods) <= allocatable.Pods().Value()
}

// take adds the requests of a pod of the kind to the node's usage. If k.other is set, it is not known whether the node
// has capacity. Such a pod leaves the capacity to others, and no second one is chosen beside it.
func (s *Space) take(k *kind) {
	if s.Pending = true; k.other {
		k.spaces = slices.DeleteFunc(k.spaces, func(of *Space) bool { return of == s })
		return
	}
	s.Used = s.Used.Plus(k.priority, 1, usage.Load{Requests: k.use})
}

// kindKey is equal for pods that the same nodes accept.
type kindKey struct {
	view     string
	priority int32
	preempts int32  // pods of a lower priority may be preempted
	open     string // by the pool's index
}

// kind is a set of held pods with the same kindKey.
type kind struct {
	kindKey
	use    aci.Use
	other  bool      // set if the pods also request resources that fits does not compare
	tried  time.Time // when a pod of the kind was last tried
	spaces []*Space  // that may accept pods of the kind
}

// spaced is a pod that may be chosen for a node.
type spaced struct {
	turn
	key   kindKey
	kind  *kind
	tried time.Time
	node  string // the node that is reserved for the pod; empty if there is none
}

// WithinSpaces admits held pods that may fit on the nodes in spaces, by name, and returns their number. It chooses among
// the pods that the scheduling queue does not requeue when a node changes or when a pod ends (ByLoop). Pods with a higher
// priority are chosen first. Among pods with the same priority, the pod that has waited longest is chosen first.
func (h *Pods) WithinSpaces(spaces map[string]*Space, now time.Time) (admitted int) {
	var all []spaced
	h.each(func(_ types.UID, entry *heldPod) {
		if entry.byLoop {
			w := spaced{turn: h.turnOf(entry), key: entry.kindKey(), tried: entry.cycle}
			if entry.admitted.lasts(now) {
				w.node = entry.admitted.node
			}
			all = append(all, w)
		}
	})
	kinds := map[kindKey]*kind{}
	var waiting []spaced
	for _, w := range all { // without the lock
		k := kinds[w.key]
		if k == nil {
			k = newKind(w.key, w.pod, spaces)
			kinds[w.key] = k
		}
		w.kind = k
		k.tried = nodegroups.Latest(k.tried, w.tried)
		if w.node != "" {
			if s := spaces[w.node]; s != nil {
				s.take(k)
			}
		} else if len(k.spaces) > 0 {
			waiting = append(waiting, w)
		}
	}
	for _, k := range kinds {
		// On a burst node, the gate may have been closed for the pod that was tried. There, each pod is tried.
		k.spaces = slices.DeleteFunc(k.spaces, func(s *Space) bool { return !s.fits(k) || s.Burst == pool.None && !k.tried.Before(s.TriedBefore) })
	}
	waiting = slices.DeleteFunc(waiting, func(w spaced) bool { return len(w.kind.spaces) == 0 })
	slices.SortFunc(waiting, func(a, b spaced) int { return inOrder(a.turn, b.turn) })
	chosen := map[types.UID]*Space{}
	for _, w := range waiting {
		for len(w.kind.spaces) > 0 && !w.kind.spaces[0].fits(w.kind) {
			w.kind.spaces = w.kind.spaces[1:]
		}
		if i := slices.IndexFunc(w.kind.spaces, func(s *Space) bool { return w.tried.Before(s.TriedBefore) && s.fits(w.kind) }); i >= 0 {
			chosen[w.pod.UID] = w.kind.spaces[i]
			chosen[w.pod.UID].take(w.kind)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range waiting {
		if s, ok := chosen[w.pod.UID]; ok && h.pods[w.pod.UID] == w.entry && w.entry.byLoop && h.admitLocked(w.entry, admission{reason: NodeHasRoom, at: now, node: s.Node.Name}) {
			admitted++
		}
	}
	return admitted
}

func (p *heldPod) kindKey() kindKey {
	open := make([]byte, len(p.open))
	for i := range p.open {
		if p.open[i] && !p.budget[i] { // WithinBudgets admits pods for a budget
			open[i] = 1
		}
	}
	return kindKeyOf(p.pod, p.viewKey, string(open))
}

func kindKeyOf(pod *v1.Pod, view, open string) kindKey {
	return kindKey{view: view, priority: corev1helpers.PodPriority(pod), preempts: PreemptorPriority(pod), open: open}
}

// PreemptorPriority returns a priority. The pod may preempt pods of lower priority.
func PreemptorPriority(pod *v1.Pod) int32 {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
		return math.MinInt32
	}
	return corev1helpers.PodPriority(pod)
}

// newKind returns a kind of pods like the pod, with the nodes that suit the pod.
func newKind(key kindKey, pod *v1.Pod, spaces map[string]*Space) *kind {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	k := &kind{kindKey: key, use: aci.Use{Pods: 1, MilliCPU: requests.Cpu().MilliValue(), Memory: requests.Memory().Value()}}
	for name := range requests {
		k.other = k.other || name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage
	}
	constraints := nodeaffinity.GetRequiredNodeAffinity(pod)
	for _, s := range spaces {
		tolerations := pod.Spec.Tolerations
		if s.Burst != pool.None {
			if key.open[s.Burst] == 0 {
				continue
			}
			tolerations = slices.Concat(tolerations, s.Tolerations)
		}
		if s.fits(k) && nodegroups.Suits(s.Node, requests, constraints, tolerations) {
			k.spaces = append(k.spaces, s)
		}
	}
	return k
}
