package held

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/waiting"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
)

// reason is why a pod is held. code is the reason code of a burst pool whose gate is closed, or ReasonNoRoom of one
// whose gate is open. If an earlier pool closes the gate, pool is the index of the first regular pool that keeps the gate
// closed. Otherwise, pool is the index of the burst pool.
type reason struct {
	pool int
	code string
}

// reasonOf returns why the pod is held: no node of the first burst pool whose gate is open takes it or, if there is no
// such pool, the decision closes the gate of the first burst pool. Without burst pools, the code is empty.
func reasonOf(decision *gate.Decision) reason {
	if i := slices.IndexFunc(decision.Burst, func(v gate.Verdict) bool { return v.Open }); i >= 0 {
		return reason{pool: i, code: gate.ReasonNoRoom.Code}
	}
	for i := range decision.Burst {
		v := &decision.Burst[i]
		if v.Reason.Code == "" {
			continue
		}
		r := reason{pool: i, code: v.Reason.Code}
		if gate.Lookup(r.code).OfEarlierPool() {
			if k := slices.IndexFunc(decision.Regular, func(p gate.Verdict) bool { return p.Holds() }); k >= 0 {
				r.pool = k
			}
		}
		return r
	}
	return reason{pool: pool.None}
}

// Published returns the waiting times that the pods' conditions do not show, and counts the held pods.
func (h *Pods) Published(pools pool.List) (map[types.UID]published.Wait, published.Held) {
	var summary published.Held
	waits, by := map[types.UID]published.Wait{}, map[reason]int{}
	h.each(func(uid types.UID, entry *heldPod) {
		summary.Total++
		w := h.Since(entry.pod, time.Time{})
		summary.Oldest = nodegroups.Earliest(summary.Oldest, w.Unschedulable)
		by[entry.reason]++
		if said := gate.UnschedulableSince(entry.pod); alike.InGang(entry.pod) || !(isNear(w.Unschedulable, said) && isNear(w.NoRoom, said) && w.Ignored.IsZero() && w.Inherited == 0) {
			w.Unschedulable = w.Unschedulable.UTC()
			waits[uid] = w
		}
	})
	for r, n := range by {
		if r.pool != pool.None {
			summary.By = append(summary.By, published.HeldBy{Pool: pools.At(r.pool).Name, Reason: r.code, Pods: n})
		}
	}
	slices.SortFunc(summary.By, func(a, b published.HeldBy) int {
		return cmp.Or(b.Pods-a.Pods, cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Reason, b.Reason))
	})
	return waits, summary
}

// isNear reports whether the times differ by at most waiting.ClockTolerance.
func isNear(a, b time.Time) bool { return a.Sub(b).Abs() <= waiting.ClockTolerance }

// ByReason counts the held pods by reason code. For some of these pods, the gate may open without a change of the pod,
// or is open. first is the earliest time at which such a pod became unschedulable, or zero.
func (h *Pods) ByReason() (by map[string]int, first time.Time) {
	by = map[string]int{}
	h.each(func(uid types.UID, entry *heldPod) {
		by[entry.reason.code]++
		if kind := gate.Lookup(entry.reason.code).Kind; !kind.Holds() || kind == gate.Lasting {
			return
		}
		first = nodegroups.Earliest(first, h.Since(entry.pod, time.Time{}).Unschedulable)
	})
	return by, first
}
