package held

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

// spareShare determines how many more pods are admitted than a budget has room for: one for each spareShare pods. These
// pods are spares, because an admitted pod may have been deleted, or may fit a node of another pool.
const spareShare = 10

// WithinBudgets admits held pods that fit into the remaining budgets of a burst pool and of their namespace there, and a
// few spares. Pods with a higher priority get budget first. Among pods with the same priority, the pod that has waited
// longest gets budget first. If a pod's namespace has no budget left for the pod, the pod is not admitted, not even as a
// spare. The reason of the pods that are not admitted becomes BudgetSpent. If only budgets hold any pod back,
// WithinBudgets calls uses to get the usage of each pool, and of each namespace in each pool.
func (h *Pods) WithinBudgets(pools pool.List, uses func() ([]aci.Use, []map[string]aci.Use), now time.Time) {
	all := h.onBudget(now)
	if len(all) == 0 {
		return
	}
	used, byNamespace := uses()
	chosen, spares := 0, 0
	for i := range all {
		w := &all[i]
		switch fits, mayFit := w.reserve(pools, used, byNamespace); {
		case w.hasBudget:
		case fits:
			w.chosen = true
			chosen++
		case mayFit && spares < chosen/spareShare:
			w.chosen = true
			spares++
		}
	}
	h.reserveBudget(all, now)
}

// budgeted is a pod that only the budgets of burst pools hold back.
type budgeted struct {
	turn
	pools     []bool // by the pools' index: whether the pod waits for the pool's budget
	hasBudget bool   // set if budget is reserved for the pod
	chosen    bool   // set if the pod is to be admitted
}

// reserve finds the first pool of w.pools whose budgets have room for the pod. It adds the pod's usage to the usage of
// this pool, and of the pod's namespace there. It reports whether it found a pool. mayFit is set if the pod would fit
// if the pool had no other pods than those of its namespace.
func (w *budgeted) reserve(pools pool.List, uses []aci.Use, byNamespace []map[string]aci.Use) (fits, mayFit bool) {
	for i := range pools.Burst() {
		if !w.pools[i] {
			continue
		}
		p, shares := pools.At(i), byNamespace[i]
		if gate.HasRoom(w.pod, p, uses[i], shares[w.pod.Namespace]) {
			use := aci.UseOf(w.pod, p.OnACI())
			uses[i], shares[w.pod.Namespace] = uses[i].Plus(use), shares[w.pod.Namespace].Plus(use)
			return true, true
		}
		mayFit = mayFit || gate.HasRoom(w.pod, p, aci.Use{}, shares[w.pod.Namespace])
	}
	return false, mayFit
}

// onBudget returns the pods that only budgets hold back. Pods with a reservation come first, because their budget is
// already reserved. Within both groups, pods are sorted by priority, and then by waiting time.
func (h *Pods) onBudget(now time.Time) []budgeted {
	var waiting []budgeted
	h.each(func(_ types.UID, entry *heldPod) {
		if !slices.Contains(entry.budget, true) {
			return
		}
		pools := slices.Clone(entry.budget)
		for i := range pools {
			pools[i] = pools[i] && entry.open[i]
		}
		if slices.Contains(pools, true) {
			waiting = append(waiting, budgeted{turn: h.turnOf(entry), pools: pools, hasBudget: entry.admitted.budget && entry.admitted.lasts(now)})
		}
	})
	slices.SortFunc(waiting, func(a, b budgeted) int {
		return cmp.Or(place[b.hasBudget]-place[a.hasBudget], inOrder(a.turn, b.turn))
	})
	return waiting
}

// reserveBudget admits the chosen pods, and sets the reason of the others. It leaves out pods that were bound or held
// again meanwhile.
func (h *Pods) reserveBudget(all []budgeted, now time.Time) {
	for part := range slices.Chunk(all, syncChunk) {
		h.mu.Lock()
		for i := range part {
			switch w := &part[i]; {
			case w.hasBudget || h.pods[w.pod.UID] != w.entry:
			case w.chosen:
				h.admitLocked(w.entry, admission{reason: Budget, at: now, budget: true})
			default:
				w.entry.reason = reason{pool: slices.Index(w.pools, true), code: gate.ReasonBudgetSpent.Code}
			}
		}
		h.mu.Unlock()
	}
}
