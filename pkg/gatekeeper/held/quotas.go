package held

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// In each quotaInterval, maxTrials pods are admitted for a half-open pool. The pool takes only one more of them. The
// other pods are spares, because an admitted pod may have been deleted, or may fit a node of another pool.
const (
	maxTrials     = 3
	quotaInterval = time.Second
)

// queue identifies held pods that are admitted a few at a time for the burst pool with index pool. If owner is empty,
// the pods are candidates for the next pod that tests the provider for the scope. Otherwise, the pods belong to the
// owner.
type queue struct {
	pool  int
	owner types.UID
	scope breaker.Scope
}

// quotas has the held pods of each queue, and the number of pods that may be admitted.
type quotas map[queue]*quota

type quota struct {
	pods  []turn
	limit int
}

// add adds the pod to a queue if the verdict opens the burst pool with index i for a few pods only. It reports whether
// it added the pod.
func (t quotas) add(waits turn, i int, v *gate.Verdict) bool {
	q, few := queue{pool: i}, maxTrials
	switch {
	case v.Trial != nil:
		q.scope = *v.Trial
	case v.Quota > 0:
		q.owner, few = refusal.OwnerOf(waits.pod), v.Quota
	default:
		return false
	}
	if t[q] == nil {
		t[q] = &quota{limit: few}
	}
	t[q].pods = append(t[q].pods, waits)
	return true
}

// admitByQuota admits pods of each queue, up to the queue's limit. It returns when the next pods are due. Pods whose
// owners count no failures come first. Within both groups, the pod that became unschedulable first comes first. After
// pods of a queue were admitted, the queue pauses for quotaInterval.
func (h *Pods) admitByQuota(queues quotas, now time.Time) time.Time {
	for _, turns := range queues { // without the lock
		slices.SortFunc(turns.pods, func(a, b turn) int {
			return cmp.Or(place[breaker.CountsFailures(a.pod)]-place[breaker.CountsFailures(b.pod)], a.since.Compare(b.since))
		})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var next time.Time
	maps.DeleteFunc(h.lastAdmitted, func(_ queue, at time.Time) bool { return now.Sub(at) >= quotaInterval })
	for q, turns := range queues {
		at, busy := h.lastAdmitted[q]
		if busy {
			next = nodegroups.Earliest(next, at.Add(quotaInterval))
			continue
		}
		for _, w := range turns.pods {
			// Scheduling cycles continue during Reconsider. The pod may have been bound or held again meanwhile.
			if turns.limit == 0 || h.pods[w.pod.UID] != w.entry {
				continue
			}
			turns.limit--
			w.entry.open[q.pool] = true
			h.admitLocked(w.entry, admission{reason: Trial, at: now})
			h.lastAdmitted[q] = now
			next = nodegroups.Earliest(next, now.Add(quotaInterval))
		}
	}
	return next
}
