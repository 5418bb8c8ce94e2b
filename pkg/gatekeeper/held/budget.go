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

// reservationTTL is how long budget stays reserved for a requeued pod. The reservation usually ends earlier, when the
// pod is bound or held again.
const reservationTTL = 10 * time.Second

// WithinBudgets returns, by namespace/name, held pods that fit into the remaining budget of a burst pool. The caller
// requeues these pods. Pods with a higher priority get budget first. Among pods with the same priority, the pod that
// has waited longest gets budget first. waiting is the number of pods that only budgets hold back. If there are such
// pods, WithinBudgets calls uses to get the usage of each pool.
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

// budgeted is a pod that only the budgets of burst pools hold back.
type budgeted struct {
	entry          *heldPod // only the pointer is compared; the other fields are copies
	pod            *v1.Pod
	pools          []bool // by the pools' index: whether the gate would be open without a budget
	since          time.Time
	hasReservation bool // set if the pod was requeued less than reservationTTL ago, and was not held again after that
	priority       int32
}

// reserve finds the first pool of w.pools whose budget has room for the pod. It adds the pod's usage to the usage of
// this pool. It reports whether it found a pool.
func (w *budgeted) reserve(pools pool.List, uses []aci.Use) bool {
	for i := range pools.Burst() {
		if p := pools.At(i); w.pools[i] && gate.HasRoom(w.pod, p, uses[i]) {
			uses[i] = uses[i].Plus(aci.UseOf(w.pod, p.OnACI()))
			return true
		}
	}
	return false
}

// onBudget returns the pods that only budgets hold back. Pods with a reservation come first, because their budget is
// already reserved. Within both groups, pods are sorted by priority, and then by waiting time.
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

// requeue drops chosen pods that were bound or held again meanwhile. It sets reservedAt of the remaining pods, and
// returns the remaining pods by namespace/name.
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
