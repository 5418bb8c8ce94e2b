package lost

import (
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/backoff"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// takenBackPerMinute is how many pods of a burst pool are taken back in a minute, and takenBackAtOnce how many of them at once: what
	// a quota refuses is back within a minute, and an outage of the provider does not become one of the API server.
	takenBackPerMinute, takenBackAtOnce = 60, 10
	// againPause is for how long a pod is left as it is that was refused like one that it replaced, and maxAgainPause for how long after many.
	againPause, maxAgainPause = 10 * time.Second, 5 * time.Minute
	// evictionRetry is how long after a refused eviction it is asked for again, and maxEvictionRetry how long after many.
	evictionRetry, maxEvictionRetry = 10 * time.Second, 10 * time.Minute
	// maxOwners is of how many owners it is remembered what happened to their pods, and ownerMemory for how long.
	maxOwners, ownerMemory = 1000, 24 * time.Hour
)

// losses is what is remembered of pods on burst nodes that have not started, and of what made them. All times are by this process's own
// clock: the API's are another's. A controller that starts anew therefore gives late pods their time once more. The scheduler publishes how many
// pods of an owner were late; the controller has no right to read that. losses is for one goroutine.
type losses struct {
	young    map[types.NamespacedName]*youngPod
	owners   *cache.LRUExpireCache // of *ownerLosses, by UID
	denials  *flowcontrol.Backoff  // of pods whose eviction was refused, by UID
	limiters map[int]*rate.Limiter // by the pool's index
}

// youngPod is a pod that has not started.
type youngPod struct {
	uid types.UID
	// seen is when it was first seen bound, and refused when it was first seen refused; zero: it is not.
	seen, refused time.Time
	// slowness is its owner's when it was first seen.
	slowness int
}

// ownerLosses is what happened to the pods of an owner.
type ownerLosses struct {
	// slowness is how often in a row pods were taken back because they did not start in time, those that were bound before the first of them
	// was taken back counting as one.
	slowness int
	// rounds is how often in a row its pods were refused, those that were bound before the first of them was taken back counting as one;
	// since is when that was, of the last round.
	rounds int
	since  time.Time
}

func newLosses(clock clock.Clock) *losses {
	denials := flowcontrol.NewBackOff(evictionRetry, maxEvictionRetry)
	denials.Clock = clock
	return &losses{young: map[types.NamespacedName]*youngPod{}, owners: cache.NewLRUExpireCacheWithClock(maxOwners, clock), denials: denials, limiters: map[int]*rate.Limiter{}}
}

// owner returns what is remembered of the owner, nothing if it is not known.
func (l *losses) owner(uid types.UID) *ownerLosses {
	if o, known := l.owners.Get(uid); known {
		return o.(*ownerLosses)
	}
	return &ownerLosses{}
}

// see notes a pod that has not started and returns what is known of it.
func (l *losses) see(name types.NamespacedName, uid, owner types.UID, refused bool, now time.Time) *youngPod {
	p := l.young[name]
	if p == nil || p.uid != uid {
		p = &youngPod{uid: uid, seen: now, slowness: l.owner(owner).slowness}
		l.young[name] = p
	}
	if !refused {
		p.refused = time.Time{}
	} else if p.refused.IsZero() {
		p.refused = now
	}
	return p
}

// forget forgets a pod that is gone, or is no business of ours.
func (l *losses) forget(name types.NamespacedName) { delete(l.young, name) }

// started forgets a pod that started at the time now: its owner's can, and if it did so in time, quickly enough.
func (l *losses) started(name types.NamespacedName, uid, owner types.UID, startWithin time.Duration, now time.Time) {
	p, o := l.young[name], l.owner(owner)
	l.forget(name)
	o.rounds = 0
	if p != nil && p.uid == uid && now.Sub(p.seen) < startWithin {
		o.slowness = 0
	}
}

// due returns when the pod of the owner counts as lost: at once if it was refused, later if so was what it replaces; if it was not
// refused, when it was to have started within the time given, zero if that is not limited. patience is how long it has had to start.
func (l *losses) due(p *youngPod, owner types.UID, startWithin time.Duration) (at time.Time, patience time.Duration) {
	o := l.owner(owner)
	switch {
	case !p.refused.IsZero() && o.rounds > 0 && p.seen.After(o.since):
		at = p.refused.Add(backoff.Pause(againPause, o.rounds-1, maxAgainPause))
	case !p.refused.IsZero():
		at = p.refused
	case startWithin == 0:
		return time.Time{}, 0
	default:
		patience = refusal.TimeToStart(startWithin, p.slowness)
		at = p.seen.Add(patience)
	}
	return at, patience
}

// turn returns zero if a pod of the pool with the index i may be taken back at the time now, or else when to ask again.
func (l *losses) turn(i int, now time.Time) time.Duration {
	if l.limiters[i] == nil {
		l.limiters[i] = rate.NewLimiter(rate.Limit(float64(takenBackPerMinute)/60), takenBackAtOnce)
	}
	if l.limiters[i].AllowN(now, 1) {
		return 0
	}
	return time.Minute / takenBackPerMinute
}

// takenBack notes that the pod of the owner was evicted at the time now.
func (l *losses) takenBack(p *youngPod, owner types.UID, now time.Time) {
	o := l.owner(owner)
	l.owners.Add(owner, o, ownerMemory)
	switch {
	case p.refused.IsZero():
		o.slowness = max(o.slowness, p.slowness+1)
	case o.rounds == 0 || p.seen.After(o.since):
		o.rounds++
		o.since = now
	}
}

// denied notes that the pod's eviction was refused at the time now, and returns when it is asked for again.
func (l *losses) denied(p *youngPod, now time.Time) time.Duration {
	l.denials.GC()
	l.denials.Next(string(p.uid), now)
	return l.denials.Get(string(p.uid))
}

// over reports whether nothing is to be done about the pod any more: it ends, or has ended. What has failed is made anew by its owner.
func over(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
