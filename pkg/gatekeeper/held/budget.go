package held

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// spareShare determines how many more pods are admitted than a budget has room for: one for each spareShare pods. These
// pods are spares, because an admitted pod may have been deleted, or may fit a node of another pool.
const spareShare = 10

// WithinBudgets admits held pods that fit into the remaining budgets of a burst pool and of their namespace there, and a
// few spares. Pods with a higher priority get budget first. Among pods with the same priority, the pod that has waited
// longest gets budget first. If a pod's namespace has no budget left for the pod, the pod is not admitted, not even as a
// spare. The pool's rates (creates) are like a budget that comes back with time. The reason of the pods that are not
// admitted becomes BudgetSpent or CreateRate. If only budgets hold any pod back, WithinBudgets calls uses to get the usage
// of each pool, and of each namespace in each pool, and the last creates there. It returns when a rate next lets pods in;
// zero if none alone holds pods back.
func (h *Pods) WithinBudgets(pools pool.List, uses func() ([]aci.Use, []map[string]aci.Use, []breaker.Creates), now time.Time) (next time.Time) {
	all := h.onBudget(now)
	if len(all) == 0 {
		return next
	}
	used, byNamespace, creates := uses()
	chosen, spares := 0, 0
	for i := range all {
		w := &all[i]
		fits, mayFit := w.reserve(pools, used, byNamespace, creates, now)
		next = nodegroups.Earliest(next, w.until)
		switch {
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
	return next
}

// budgeted is a pod that only the budgets of burst pools hold back.
type budgeted struct {
	turn
	pools     []bool    // by the pools' index: whether the pod waits for the pool's budget
	hasBudget bool      // set if budget is reserved for the pod
	chosen    bool      // set if the pod is to be admitted
	until     time.Time // when a rate lets the pod in; zero if none alone holds it back
	reason    reason    // of the first of the pools
}

// reserve finds the first pool of w.pools whose budgets and rates have room for the pod. It adds the pod to what is used of
// this pool. It reports whether it found a pool. mayFit is set if the pod would fit if the pool had no other pods than
// those of its namespace.
func (w *budgeted) reserve(pools pool.List, uses []aci.Use, byNamespace []map[string]aci.Use, creates []breaker.Creates, now time.Time) (fits, mayFit bool) {
	for i := range pools.Burst() {
		if !w.pools[i] {
			continue
		}
		p, shares, namespace := pools.At(i), byNamespace[i], w.pod.Namespace
		until, _ := gate.CreatesUntil(namespace, p, creates[i], now)
		switch room := gate.HasRoom(w.pod, p, uses[i], shares[namespace]); {
		case room && until.IsZero():
			use := aci.UseOf(w.pod, p.OnACI())
			uses[i], shares[namespace], creates[i] = uses[i].Plus(use), shares[namespace].Plus(use), append(creates[i], breaker.Create{UID: w.pod.UID, Namespace: namespace, At: now})
			return true, true
		case room:
			w.until, w.reason = nodegroups.Earliest(w.until, until), cmp.Or(w.reason, reason{i, gate.ReasonCreateRate.Code})
		default:
			w.reason = cmp.Or(w.reason, reason{i, gate.ReasonBudgetSpent.Code})
			mayFit = mayFit || until.IsZero() && gate.HasRoom(w.pod, p, aci.Use{}, shares[namespace])
		}
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
				w.entry.reason = w.reason
			}
		}
		h.mu.Unlock()
	}
}
