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
// pod is bound or tried.
const reservationTTL = 10 * time.Second

// spareShare determines how many more pods are requeued than a budget has room for: one for each spareShare pods. These
// pods are spares, because a requeued pod may have been deleted, or may fit a node of another pool.
const spareShare = 10

// WithinBudgets returns, by namespace/name, held pods that fit into the remaining budget of a burst pool, and a few
// spares. The caller requeues these pods. Pods with a higher priority get budget first. Among pods with the same
// priority, the pod that has waited longest gets budget first. The reason of the other pods becomes BudgetSpent.
// waiting is the number of pods that only budgets hold back. If there are such pods, WithinBudgets calls uses to get
// the usage of each pool.
func (h *Pods) WithinBudgets(pools pool.List, uses func() []aci.Use, now time.Time) (pods map[string]*v1.Pod, waiting int) {
	all := h.onBudget(now)
	if len(all) == 0 {
		return nil, 0
	}
	used := uses()
	var chosen, others []*budgeted
	for i := range all {
		switch w := &all[i]; {
		case w.reserve(pools, used) && !w.hasReservation:
			chosen = append(chosen, w)
		case !w.hasReservation:
			others = append(others, w)
		}
	}
	spares := min(len(chosen)/spareShare, len(others))
	return h.reserveBudget(append(chosen, others[:spares]...), others[spares:], now), len(all)
}

// turn is the place of a held pod in the order in which pods are requeued. The fields are copies.
type turn struct {
	entry    *heldPod // only the pointer is compared
	pod      *v1.Pod
	since    time.Time
	priority int32
}

func (h *Pods) turnOf(entry *heldPod) turn {
	return turn{entry: entry, pod: entry.pod, since: h.firstFailed[entry.pod.UID], priority: corev1helpers.PodPriority(entry.pod)}
}

// inOrder compares pods by priority, and then by waiting time.
func inOrder(a, b turn) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
}

// budgeted is a pod that only the budgets of burst pools hold back.
type budgeted struct {
	turn
	pools          []bool // by the pools' index: whether the pod waits for the pool's budget
	reason         string // the code
	hasReservation bool   // set if the pod was requeued less than reservationTTL ago, and was not tried after that
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
	h.each(func(uid types.UID, entry *heldPod) {
		pools := slices.Clone(entry.budget)
		for i := range pools {
			pools[i] = pools[i] && entry.open[i]
		}
		if slices.Contains(pools, true) {
			waiting = append(waiting, budgeted{turn: h.turnOf(entry), pools: pools, reason: entry.reason.code,
				hasReservation: !entry.reservedAt.IsZero() && (h.batches.waiting[uid] != nil || now.Before(entry.reservedAt.Add(reservationTTL)))})
		}
	})
	rank := map[bool]int{true: 0, false: 1}
	slices.SortFunc(waiting, func(a, b budgeted) int {
		return cmp.Or(rank[a.hasReservation]-rank[b.hasReservation], inOrder(a.turn, b.turn))
	})
	return waiting
}

// reserveBudget sets reservedAt of the chosen pods, and the reason of the others. It drops pods that were bound or held
// again meanwhile. It returns the chosen pods by namespace/name.
func (h *Pods) reserveBudget(chosen, others []*budgeted, now time.Time) map[string]*v1.Pod {
	pods := map[string]*v1.Pod{}
	others = slices.DeleteFunc(others, func(w *budgeted) bool { return w.reason == gate.ReasonBudgetSpent.Code })
	for k, chunk := range [][]*budgeted{chosen, others} {
		for part := range slices.Chunk(chunk, syncChunk) {
			h.mu.Lock()
			for _, w := range part {
				switch entry, ok := h.pods[w.pod.UID]; {
				case !ok || entry != w.entry:
				case k == 0:
					entry.reservedAt = now
					pods[nameOf(entry.pod)] = entry.pod
				default:
					entry.reason = reason{pool: slices.Index(w.pools, true), code: gate.ReasonBudgetSpent.Code}
				}
			}
			h.mu.Unlock()
		}
	}
	return pods
}
