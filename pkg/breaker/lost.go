package breaker

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/backoff"
)

// If the provider also refuses the replacement of a refused pod that was evicted, the replacement is lost only after a
// pause. againPause is the first pause, and maxAgainPause the longest.
const againPause, maxAgainPause = 10 * time.Second, 5 * time.Minute

// Lost is a pod on the pool's nodes that will not start, or that is being deleted before it started.
type Lost struct {
	Pod
	// Within is how long the pod had to start. It is zero if the pod was refused or is being deleted.
	Within time.Duration
	seen   time.Time // when the pod was first seen, by the caller's clock
}

// evictions counts, for an owner, the rounds in a row in which refused pods were evicted. since is when the last round
// began. The next round begins with the eviction of a pod that was first seen after since.
type evictions struct {
	rounds int
	since  time.Time
}

// Lost returns the pods on the pool's nodes that are lost at the time now, in the order of their binding. A pod is lost
// if it is late (Rules.StartWithin). A pod that was bound before this Breaker saw it has the whole time again: it may
// have started, and its container group may be under repair. A pod that the provider refuses is lost at once. If an
// evicted pod of its owner was refused before, it is lost after a pause.
func (b *Breaker) Lost(now time.Time) []Lost {
	b.findLate(now) // before the pod's replacement is seen, which has more time then
	var lost []Lost
	for _, k := range b.pods {
		switch {
		case k.Started:
		case k.Ending:
			lost = append(lost, Lost{Pod: k.Pod})
		case k.Refusal != nil:
			at, before := k.refused, b.evictions[k.Owner]
			if before.rounds > 0 && k.seen.After(before.since) {
				at = at.Add(backoff.Pause(againPause, before.rounds-1, maxAgainPause))
			}
			if !now.Before(at) {
				lost = append(lost, Lost{Pod: k.Pod, seen: k.seen})
			}
		case k.within > 0 && !now.Before(latest(k.Bound, k.seen).Add(k.within)):
			lost = append(lost, Lost{Pod: k.Pod, Within: k.within})
		}
	}
	slices.SortFunc(lost, func(a, b Lost) int { return cmp.Or(byBinding(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID)) })
	return lost
}

// Evicted records that the lost pod was evicted at the time now. The pod may have left the pool's nodes already.
func (b *Breaker) Evicted(pod *Lost, now time.Time) {
	if e := b.evictions[pod.Owner]; pod.Refusal != nil && (e.rounds == 0 || pod.seen.After(e.since)) {
		b.evictions[pod.Owner] = evictions{e.rounds + 1, now}
		trim(b.evictions, maxOwners, func(owner types.UID, e evictions) (time.Time, string) { return e.since, string(owner) })
	}
}
