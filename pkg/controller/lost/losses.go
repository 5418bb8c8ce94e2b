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
	// evictionsAtOnce limits the evictions from one burst pool without a delay between them. Further evictions have a
	// pause between them, of refusingPause or openPause. refusingPause is for pods whose replacements do not go to the
	// same pool: the provider refused them because of the pool, which closes, or because of the pod's template, which is
	// ineligible then. This pause protects the API server. openPause is for all others, and allows 20 evictions in 5
	// minutes: each replacement may be another container group, and Azure allows 100 creates of these in 5 minutes.
	evictionsAtOnce          = 10
	refusingPause, openPause = time.Second, 30 * time.Second
	// If the provider also refuses the replacement of a refused pod, the controller evicts the replacement after a
	// backoff. againPause is the first backoff, and maxAgainPause the longest.
	againPause, maxAgainPause = 10 * time.Second, 5 * time.Minute
	// evictionRetry is the first backoff after the API server refused an eviction, and maxEvictionRetry the longest.
	evictionRetry, maxEvictionRetry = 10 * time.Second, 10 * time.Minute
	// The controller keeps the failures of at most maxOwners owners. It drops the entry of an owner after ownerMemory.
	maxOwners, ownerMemory = 1000, 24 * time.Hour
)

// podFailures tracks, in memory, pods that have not started. It is not safe for concurrent use. After a restart of the
// controller, pods that have not started get the whole of startWithin again. The scheduler publishes the same counts in
// a ConfigMap, but the controller has no right to read this ConfigMap.
type podFailures struct {
	notStarted map[types.NamespacedName]*notStartedPod
	owners     *cache.LRUExpireCache // *ownerFailures, by the owner's UID
	denials    *flowcontrol.Backoff  // backoffs after the API server refused to evict a pod, by the pod's UID
	limiters   map[limiterKey]*rate.Limiter
}

// limiterKey identifies the rate limiter of evictions from the burst pool with an index.
type limiterKey struct {
	pool  int
	pause time.Duration // refusingPause or openPause
}

// notStartedPod is a pod that has not started.
type notStartedPod struct {
	uid types.UID
	// seen is when the controller first saw the pod bound. refused is when the controller first saw that the provider
	// refused the pod. If the provider has not refused the pod, refused is zero.
	seen, refused time.Time
	// slowness is the value of ownerFailures.slowness of the pod's owner at the time in seen.
	slowness int
}

// ownerFailures counts the failures of an owner's pods.
type ownerFailures struct {
	// slowness counts how often in a row the controller evicted pods that did not start in time. If several evicted
	// pods have the same notStartedPod.slowness, they raise the count only once.
	slowness int
	// rounds counts the rounds in a row in which the provider refused pods of the owner. since is the time at which the
	// last round began. The next round begins when the controller evicts a refused pod that it first saw after since.
	rounds int
	since  time.Time
}

func newPodFailures(clock clock.Clock) *podFailures {
	denials := flowcontrol.NewBackOff(evictionRetry, maxEvictionRetry)
	denials.Clock = clock
	return &podFailures{notStarted: map[types.NamespacedName]*notStartedPod{}, owners: cache.NewLRUExpireCacheWithClock(maxOwners, clock), denials: denials, limiters: map[limiterKey]*rate.Limiter{}}
}

// owner returns the failures of the owner, or zero values if there is no entry for the owner.
func (l *podFailures) owner(uid types.UID) *ownerFailures {
	if o, known := l.owners.Get(uid); known {
		return o.(*ownerFailures)
	}
	return &ownerFailures{}
}

// see records that the pod has not started, and returns the entry of the pod.
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

// forget drops the entry of a pod that no longer exists or that the controller will not evict, and the backoff of its
// eviction.
func (l *podFailures) forget(name types.NamespacedName) {
	if p := l.notStarted[name]; p != nil {
		l.denials.Reset(string(p.uid))
	}
	delete(l.notStarted, name)
}

// started drops the entry of a pod that started at the time now. It sets the rounds of the pod's owner to 0. If the pod
// started within startWithin, it also sets the owner's slowness to 0.
func (l *podFailures) started(name types.NamespacedName, uid, owner types.UID, startWithin time.Duration, now time.Time) {
	p, o := l.notStarted[name], l.owner(owner)
	l.forget(name)
	o.rounds = 0
	if p != nil && p.uid == uid && now.Sub(p.seen) < startWithin {
		o.slowness = 0
	}
}

// due returns the time at which to evict the pod. A pod that the provider refused is evicted at once. If the provider
// also refused the pod's predecessor, the pod is evicted after a backoff. A pod that the provider has not refused is
// evicted if it does not start within limit. If startWithin is zero, the last rule does not apply, and at is zero.
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

// delay returns zero if the rate limits allow an eviction from the pool with the index i at the time now. Otherwise it
// returns the delay before the next attempt. cause is why the provider refused the pod, or empty.
func (l *podFailures) delay(i int, cause refusal.Cause, now time.Time) time.Duration {
	key := limiterKey{i, openPause}
	if cause == refusal.PoolError || cause == refusal.PodError {
		key.pause = refusingPause
	}
	if l.limiters[key] == nil {
		l.limiters[key] = rate.NewLimiter(rate.Every(key.pause), evictionsAtOnce)
	}
	if l.limiters[key].AllowN(now, 1) {
		return 0
	}
	return key.pause
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

// denied records that the API server refused to evict the pod at the time now. It returns the backoff before the next
// attempt.
func (l *podFailures) denied(p *notStartedPod, now time.Time) time.Duration {
	l.denials.GC()
	l.denials.Next(string(p.uid), now)
	return l.denials.Get(string(p.uid))
}

// over reports whether the pod is terminating or has ended. The owner of such a pod can replace the pod without an
// eviction.
func over(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
