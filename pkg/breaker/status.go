package breaker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/backoff"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// Status returns the pool's status at the time now.
func (b *Breaker) Status(now time.Time) Status {
	b.forget(now)
	b.findLate(now)
	if b.state != Open && b.accepted.After(b.closed.Add(b.rules.InFlight)) {
		b.open(now)
	}
	switch {
	case b.state == Open:
		if b.refuses(now) {
			b.since = now
			b.close(now, func(Failure) bool { return true })
			b.closeNamespaces(1, func(f Failure) bool { return f.Cause != refusal.PoolError }, now)
		} else {
			b.closeNamespaces(2, func(Failure) bool { return true }, now)
		}
	case b.state == Refusing && !now.Before(b.until):
		b.state, b.until, b.probed = HalfOpen, time.Time{}, b.newest
	case b.state == HalfOpen && b.trialFails():
		b.close(now, b.ofTrial)
	case b.state == HalfOpen && len(b.failures) == 0 && !now.Before(b.shut.Add(b.rules.Evidence)):
		// All failures are too old. Otherwise, a pool that gets no test pod would stay half-open for ever.
		b.open(now)
		b.expired = true
	case b.state == HalfOpen:
		b.closeNamespaces(1, b.ofTrial, now)
	}
	j := Status{State: b.state, Since: b.since, Expired: b.expired, Until: b.until, Failed: len(b.failures), Templates: b.templates,
		Closings: b.listed(), Creates: b.creates, Pacing: b.Pacing("", nil, now)}
	for i := range j.Closings {
		if c := &j.Closings[i]; !now.Before(c.Until) {
			c.Tests = b.Tests(c.Scope, nil, now)
		}
	}
	if b.state != Open {
		j.Code, j.Message, j.Tests = b.code, b.text, b.Tests(Scope{}, nil, now)
	}
	b.schedule(&j, now)
	return j
}

// forget drops failures and other entries that do not count any more.
func (b *Breaker) forget(now time.Time) {
	maps.DeleteFunc(b.failures, func(_ types.UID, f Failure) bool {
		return f.Bound.Before(b.accepted) || now.Sub(f.At) >= b.rules.Evidence
	})
	maps.DeleteFunc(b.refusedPods, func(_ types.UID, r refusedPod) bool { return now.Sub(r.bound) >= b.rules.Forget })
	b.forgetClosings(now)
	maps.DeleteFunc(b.evictions, func(_ types.UID, e evictions) bool { return now.Sub(e.since) >= b.rules.Template })
	maps.DeleteFunc(b.slow, func(_ types.UID, s Lateness) bool { return now.Sub(s.At) >= b.rules.Template })
	for key, template := range b.templates {
		if !now.Before(template.Until) {
			b.templates = maps.Clone(b.templates) // an earlier Status shares the old map
			delete(b.templates, key)
		}
	}
}

// findLate counts the pods that have become late.
func (b *Breaker) findLate(now time.Time) {
	for _, k := range b.waiting {
		due := k.Bound.Add(k.within)
		if !k.mayBeLate() || now.Before(due) {
			continue
		}
		k.late = true
		b.countRefused(&k.Pod)
		if times := k.slowness + 1; times >= b.slow[k.Owner].Times {
			b.slow[k.Owner] = Lateness{Times: times, At: due}
			trim(b.slow, maxOwners, func(uid types.UID, x Lateness) (time.Time, string) { return x.At, string(uid) })
		}
		if !k.Bound.Before(b.accepted) && now.Sub(due) < b.rules.Evidence {
			b.fail(Failure{UID: k.UID, Namespace: k.Namespace, Code: refusal.CodeLate, Message: fmt.Sprintf("a pod has not started within %v", k.within), Bound: k.Bound, At: due})
		}
	}
}

// mayBeLate reports whether a pod that may still start can become late. It returns false for a pod that was refused, or
// that was already counted as late.
func (k *known) mayBeLate() bool { return k.within > 0 && !k.late && k.cause == "" }

// refuses reports whether an Open pool must become Refusing. It must if two pods had a pool error, if one pod's pool
// error is older than Rules.Alone, or if pods in two namespaces failed. Other failures in a single namespace are not
// enough, because they may have a local cause, such as a mistyped image (closeNamespaces). Nor do they count in a
// namespace for which the pool is closed, so that a tenant with two namespaces cannot close the pool again and again.
func (b *Breaker) refuses(now time.Time) bool {
	ofPool, namespaces := 0, map[string]bool{}
	for _, f := range b.failures {
		b.countNamespace(namespaces, f)
		if f.Cause != refusal.PoolError {
			continue
		}
		ofPool++
		if _, there := b.pods[f.UID]; there && !now.Before(f.At.Add(b.rules.Alone)) {
			return true
		}
	}
	return ofPool >= 2 || len(namespaces) >= 2
}

// countNamespace adds the failure's namespace, unless the failure has no pool error and the pool is closed for the
// namespace.
func (b *Breaker) countNamespace(namespaces map[string]bool, f Failure) {
	if f.Cause == refusal.PoolError || b.closings[Scope{Namespace: f.Namespace}].Times == 0 {
		namespaces[f.Namespace] = true
	}
}

func (b *Breaker) open(now time.Time) {
	b.state, b.since, b.until, b.rests, b.expired = Open, now, time.Time{}, 0, false
}

// ofTrial reports whether the failed pod was a test of the half-open pool. A test pod was bound after all pods that
// were seen before the pool became half-open.
func (b *Breaker) ofTrial(f Failure) bool { return f.Bound.After(b.probed) }

// trialFails reports whether tests of the half-open pool had a pool error, or failed in two namespaces. The failure of
// a test in one namespace closes the pool only for this namespace, so that others get their test.
func (b *Breaker) trialFails() bool {
	namespaces := map[string]bool{}
	for _, f := range b.failures {
		if !b.ofTrial(f) {
			continue
		}
		if b.countNamespace(namespaces, f); f.Cause == refusal.PoolError {
			return true
		}
	}
	return len(namespaces) >= 2
}

// close makes the pool Refusing because of the failures that match. The code and message come from the latest pool
// error. Without a pool error, they come from the latest unknown refusal. Otherwise, they come from the latest late
// pod.
func (b *Breaker) close(now time.Time, match func(Failure) bool) {
	var why Failure
	weight := map[refusal.Cause]int{refusal.PoolError: 2, refusal.Unknown: 1}
	for _, f := range b.failures {
		if match(f) && cmp.Or(cmp.Compare(weight[f.Cause], weight[why.Cause]), f.At.Compare(why.At), cmp.Compare(f.UID, why.UID)) > 0 {
			why = f
		}
	}
	rest := backoff.Pause(b.rules.FirstBackoff, b.rests, b.rules.MaxBackoff)
	b.state, b.until, b.closed, b.shut, b.expired = Refusing, now.Add(rest), b.newest, now, false
	b.code, b.text = why.Code, why.Message
	b.rests = min(b.rests+1, 30)
}

// schedule sets Next in j.
func (b *Breaker) schedule(j *Status, now time.Time) {
	at := func(due time.Time) {
		if due.After(now) && (j.Next.IsZero() || due.Before(j.Next)) {
			j.Next = due
		}
	}
	at(b.until)
	if b.state == HalfOpen {
		at(b.shut.Add(b.rules.Evidence))
	}
	for _, k := range b.waiting {
		at(k.startsUntil(b.rules.StartWithin))
		if k.mayBeLate() {
			at(k.Bound.Add(k.within))
		}
	}
	for uid, f := range b.failures {
		at(f.At.Add(b.rules.Evidence))
		if _, there := b.pods[uid]; there && f.Cause == refusal.PoolError {
			at(f.At.Add(b.rules.Alone))
		}
	}
	for _, template := range b.templates {
		at(template.Until)
	}
	for _, c := range b.closings {
		at(c.Until)
		at(c.Until.Add(b.rules.Evidence))
	}
	for _, r := range b.refusedPods {
		at(r.bound.Add(b.rules.Forget))
	}
}

// trim drops the oldest entries until at most the given number of entries remain.
func trim[K comparable, V any](entries map[K]V, most int, age func(K, V) (time.Time, string)) {
	if n := len(entries) - most; n > 0 {
		for _, key := range newestOf(entries, len(entries), age)[:n] {
			delete(entries, key)
		}
	}
}

// newestOf returns the keys of the newest entries, at most the given number of keys. The keys are sorted by age, the
// oldest first, and then by name.
func newestOf[K comparable, V any](entries map[K]V, most int, age func(K, V) (time.Time, string)) []K {
	keys := slices.SortedFunc(maps.Keys(entries), func(a, b K) int {
		atA, idA := age(a, entries[a])
		atB, idB := age(b, entries[b])
		return cmp.Or(atA.Compare(atB), cmp.Compare(idA, idB))
	})
	return keys[max(0, len(keys)-most):]
}
