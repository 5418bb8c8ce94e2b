package held

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// maxProbes is how many pods are woken, each turnInterval, for a burst pool that takes one to see whether its provider
// takes pods again: the others have a node elsewhere by then, or are gone.
const (
	maxProbes    = 3
	turnInterval = time.Second
)

// queue is whose turns are one after the other: those of all pods that may be let in to a burst pool, by its index, to
// see whether its provider takes pods again, or those of one owner.
type queue struct {
	pool  int
	owner types.UID
}

// turns are the held pods of each queue, and how many of them may be let in.
type turns map[queue]*turn

type turn struct {
	pods []*heldPod
	few  int
}

// add adds the pod, for which the verdict opens the burst pool with index i, if it does so for a few only.
func (t turns) add(entry *heldPod, i int, v *gate.Verdict) bool {
	q, few := queue{pool: i}, maxProbes
	switch {
	case v.Probe:
	case v.Turn > 0:
		q.owner, few = refusal.OwnerOf(entry.pod), v.Turn
	default:
		return false
	}
	if t[q] == nil {
		t[q] = &turn{few: few}
	}
	t[q].pods = append(t[q].pods, entry)
	return true
}

// takeTurns adds to opened the few pods of each queue whose turn it is, and returns when the next are due: those that
// have been held for the longest, and no others before the first have been tried. To see whether a provider takes pods
// again, those come first whose owners count no failures.
func (h *Pods) takeTurns(queues turns, opened map[string]*v1.Pod, now time.Time) time.Time {
	var next time.Time
	maps.DeleteFunc(h.turned, func(_ queue, at time.Time) bool { return now.Sub(at) >= turnInterval })
	for q, turn := range queues {
		at, busy := h.turned[q]
		if busy {
			next = nodegroups.Earliest(next, at.Add(turnInterval))
			continue
		}
		// Cycles go on while pods are looked at: one may be bound by now, or held anew.
		turn.pods = slices.DeleteFunc(turn.pods, func(entry *heldPod) bool { return h.pods[entry.pod.UID] != entry })
		slices.SortStableFunc(turn.pods, func(a, b *heldPod) int {
			return cmp.Or(costs(a)-costs(b), h.firstFailed[a.pod.UID].Compare(h.firstFailed[b.pod.UID]))
		})
		for _, entry := range turn.pods[:min(len(turn.pods), turn.few)] {
			entry.open[q.pool] = true
			opened[nameOf(entry.pod)] = entry.pod
		}
		if len(turn.pods) > 0 {
			h.turned[q] = now
			next = nodegroups.Earliest(next, now.Add(turnInterval))
		}
	}
	return next
}

// costs is 1 if it costs the pod's owner something that the pod is refused, and 0 if not.
func costs(entry *heldPod) int {
	if breaker.CountsFailures(entry.pod) {
		return 1
	}
	return 0
}
