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
	// evictionsPerMinute and evictionsAtOnce limit the evictions in a burst pool. With these limits, 70 pods that a
	// quota refuses are evicted from a pool within a minute, and an outage of the provider does not overload the API
	// server.
	evictionsPerMinute, evictionsAtOnce = 60, 10
	// againPause is the first backoff, and maxAgainPause the longest, before the eviction of a refused pod that
	// replaced a refused pod.
	againPause, maxAgainPause = 10 * time.Second, 5 * time.Minute
	// evictionRetry is the first backoff after a refused eviction, and maxEvictionRetry the longest.
	evictionRetry, maxEvictionRetry = 10 * time.Second, 10 * time.Minute
	// maxOwners bounds how many owners are remembered, and ownerMemory bounds how long.
	maxOwners, ownerMemory = 1000, 24 * time.Hour
)

// podFailures tracks pods that failed to start. It is kept in memory, uses this process's clock, and is for one
// goroutine only. After a restart, late pods get the whole of startWithin again. The scheduler publishes the same
// counts, but the controller may not read them.
type podFailures struct {
	notStarted map[types.NamespacedName]*notStartedPod
	owners     *cache.LRUExpireCache // *ownerFailures, by UID
	denials    *flowcontrol.Backoff  // the backoffs of pods whose eviction was refused, by UID
	limiters   map[int]*rate.Limiter // by the pool's index
}

// notStartedPod is a pod that has not started.
type notStartedPod struct {
	uid types.UID
	// seen is the time at which the pod was first seen bound, and refused the time at which it was first seen refused.
	// refused is zero if the pod is not refused.
	seen, refused time.Time
	// slowness is the owner's slowness when the pod was first seen.
	slowness int
}

// ownerFailures counts the failures of an owner's pods.
type ownerFailures struct {
	// slowness counts the evictions in a row of pods that did not start in time. Pods that were first seen at the same
	// slowness raise it only once.
	slowness int
	// rounds counts the rounds in a row in which its pods were refused. A round begins with the eviction of a pod that
	// was first seen after the last round began. since is when the last round began.
	rounds int
	since  time.Time
}

func newPodFailures(clock clock.Clock) *podFailures {
	denials := flowcontrol.NewBackOff(evictionRetry, maxEvictionRetry)
	denials.Clock = clock
	return &podFailures{notStarted: map[types.NamespacedName]*notStartedPod{}, owners: cache.NewLRUExpireCacheWithClock(maxOwners, clock), denials: denials, limiters: map[int]*rate.Limiter{}}
}

// owner returns the failures of the owner, or zero values if the owner is not known.
func (l *podFailures) owner(uid types.UID) *ownerFailures {
	if o, known := l.owners.Get(uid); known {
		return o.(*ownerFailures)
	}
	return &ownerFailures{}
}

// see records a pod that has not started and returns its entry.
func (l *podFailures) see(name types.NamespacedName, uid, owner types.UID, refused bool, now time.Time) *notStartedPod {
	p := l.notStarted[name]
	if p == nil || p.uid != uid {
		p = &notStartedPod{uid: uid, seen: now, slowness: l.owner(owner).slowness}
		l.notStarted[name] = p
	}
	if !refused {
		p.refused = time.Time{}
	} else if p.refused.IsZero() {
		p.refused = now
	}
	return p
}

// forget drops a pod that is gone, or that this controller does not handle.
func (l *podFailures) forget(name types.NamespacedName) {
	if p := l.notStarted[name]; p != nil {
		l.denials.Reset(string(p.uid))
	}
	delete(l.notStarted, name)
}

// started drops a pod that started at the time now. Its owner's refusals are reset, and its slowness, too, if the pod
// started in time.
func (l *podFailures) started(name types.NamespacedName, uid, owner types.UID, startWithin time.Duration, now time.Time) {
	p, o := l.notStarted[name], l.owner(owner)
	l.forget(name)
	o.rounds = 0
	if p != nil && p.uid == uid && now.Sub(p.seen) < startWithin {
		o.slowness = 0
	}
}

// due returns when to evict the pod. A refused pod is evicted at once, or after a backoff if the pod that it replaces
// was refused, too. Any other pod is evicted after limit, its time to start. For such a pod, at is zero if startWithin
// is zero.
func (l *podFailures) due(p *notStartedPod, owner types.UID, startWithin time.Duration) (at time.Time, limit time.Duration) {
	o := l.owner(owner)
	switch {
	case !p.refused.IsZero() && o.rounds > 0 && p.seen.After(o.since):
		at = p.refused.Add(backoff.Pause(againPause, o.rounds-1, maxAgainPause))
	case !p.refused.IsZero():
		at = p.refused
	case startWithin == 0:
		return time.Time{}, 0
	default:
		limit = refusal.TimeToStart(startWithin, p.slowness)
		at = p.seen.Add(limit)
	}
	return at, limit
}

// delay returns zero if a pod of the pool with the index i may be evicted at the time now, or else the delay until the
// next try.
func (l *podFailures) delay(i int, now time.Time) time.Duration {
	if l.limiters[i] == nil {
		l.limiters[i] = rate.NewLimiter(rate.Limit(float64(evictionsPerMinute)/60), evictionsAtOnce)
	}
	if l.limiters[i].AllowN(now, 1) {
		return 0
	}
	return time.Minute / evictionsPerMinute
}

// evicted records that the pod of the owner was evicted at the time now.
func (l *podFailures) evicted(p *notStartedPod, owner types.UID, now time.Time) {
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

// denied records that the pod's eviction was refused at the time now. It returns the backoff before the next try.
func (l *podFailures) denied(p *notStartedPod, now time.Time) time.Duration {
	l.denials.GC()
	l.denials.Next(string(p.uid), now)
	return l.denials.Get(string(p.uid))
}

// over reports whether the pod is terminating or has ended. Its owner replaces it then.
func over(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
