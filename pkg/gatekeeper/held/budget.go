package held

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

// reservationTTL is how long budget stays reserved for a requeued pod. Usually the pod is bound or held again earlier.
const reservationTTL = 10 * time.Second

// WithinBudgets returns, by namespace/name, the pods to requeue because a budget has room for them. Pods with a higher
// priority come first. Of pods with the same priority, those that have waited longer come first. waiting counts all
// pods that only budgets hold. uses returns the usage of each pool. It is called only if there are such pods.
func (h *Pods) WithinBudgets(pools pool.List, uses func() []aci.Use, now time.Time) (pods map[string]*v1.Pod, waiting int) {
	all := h.onBudget(now)
	if len(all) == 0 {
		return nil, 0
	}
	used := uses()
	var chosen []*budgeted
	for i := range all {
		w := &all[i]
		if w.reserve(pools, used) && !w.hasReservation {
			chosen = append(chosen, w)
		}
	}
	return h.requeue(chosen, now), len(all)
}

// budgeted is a pod that only the budgets of burst pools hold.
type budgeted struct {
	entry          *heldPod // only for comparison; the other fields are copies
	pod            *v1.Pod
	pools          []bool // by the pools' index: whether the gate is open, apart from the budget
	since          time.Time
	hasReservation bool // requeued less than reservationTTL ago, and not held since; its usage is added first
	priority       int32
}

// reserve adds the pod's usage to the first of its pools that has room for the pod, and reports whether there is such a
// pool.
func (w *budgeted) reserve(pools pool.List, uses []aci.Use) bool {
	for i := range pools.Burst() {
		if p := pools.At(i); w.pools[i] && gate.HasRoom(w.pod, p, uses[i]) {
			uses[i] = uses[i].Plus(aci.UseOf(w.pod, p.OnACI()))
			return true
		}
	}
	return false
}

// onBudget returns the pods that only budgets hold. Pods with a reservation come first. Within each group, pods are in
// the order of priority and age.
func (h *Pods) onBudget(now time.Time) []budgeted {
	var waiting []budgeted
	h.each(func(_ types.UID, entry *heldPod) {
		if entry.budget && slices.Contains(entry.open, true) {
			waiting = append(waiting, budgeted{entry: entry, pod: entry.pod, pools: slices.Clone(entry.open), since: h.firstFailed[entry.pod.UID],
				hasReservation: now.Before(entry.reservedAt.Add(reservationTTL)), priority: corev1helpers.PodPriority(entry.pod)})
		}
	})
	rank := map[bool]int{true: 0, false: 1}
	slices.SortFunc(waiting, func(a, b budgeted) int {
		return cmp.Or(rank[a.hasReservation]-rank[b.hasReservation], cmp.Compare(b.priority, a.priority), a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return waiting
}

// requeue sets reservedAt of the chosen pods that have not been bound or held again meanwhile, and returns these pods
// by namespace/name.
func (h *Pods) requeue(chosen []*budgeted, now time.Time) map[string]*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	pods := map[string]*v1.Pod{}
	for _, w := range chosen {
		if entry, ok := h.pods[w.pod.UID]; ok && entry == w.entry {
			entry.reservedAt = now
			pods[nameOf(entry.pod)] = entry.pod
		}
	}
	return pods
}
