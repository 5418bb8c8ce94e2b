package refusal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Judge says how the pool is at the time now.
func (t *Tracker) Judge(now time.Time) Judgement {
	t.forget(now)
	t.findLate(now)
	if t.state != Open && t.accepted.After(t.closed.Add(t.rules.InFlight)) {
		t.open(now)
	}
	switch {
	case t.state == Open:
		if t.refuses(now) {
			t.since = now
			t.close(now, func(Failure) bool { return true })
		}
	case t.state == Refusing && !now.Before(t.until):
		t.state, t.until, t.probed = Probing, time.Time{}, t.newest
	case t.state == Probing && t.anyFailure(t.ofProbe):
		t.close(now, t.ofProbe)
	case t.state == Probing && t.lapses(now):
		t.open(now)
		t.lapsed = true
	}
	j := Judgement{State: t.state, Since: t.since, Lapsed: t.lapsed, Until: t.until, Failed: len(t.failures), Templates: t.templates,
		Pacing: t.Pacing("", nil, now)}
	if t.state != Open {
		j.Code, j.Message = t.code, t.text
	}
	t.schedule(&j, now)
	return j
}

// forget drops what is too old to count.
func (t *Tracker) forget(now time.Time) {
	maps.DeleteFunc(t.failures, func(_ types.UID, f Failure) bool {
		return f.Bound.Before(t.accepted) || now.Sub(f.At) >= t.rules.Evidence
	})
	t.forgetRefused(now)
	maps.DeleteFunc(t.slow, func(_ types.UID, s Lateness) bool { return now.Sub(s.At) >= t.rules.Template })
	for key, template := range t.templates {
		if !now.Before(template.Until) {
			t.templates = maps.Clone(t.templates) // judgements have the one before
			delete(t.templates, key)
		}
	}
}

// findLate finds the pods that have become late.
func (t *Tracker) findLate(now time.Time) {
	for _, k := range t.waiting {
		due := k.Bound.Add(k.within)
		if !k.mayBeLate() || now.Before(due) {
			continue
		}
		k.late = true
		t.countRefused(&k.Pod)
		if times := min(k.slowness+1, maxSlow); times >= t.slow[k.Owner].Times {
			t.slow[k.Owner] = Lateness{Times: times, At: due}
			trim(t.slow, maxOwners, func(uid types.UID, x Lateness) (time.Time, string) { return x.At, string(uid) })
		}
		if !k.Bound.Before(t.accepted) && now.Sub(due) < t.rules.Evidence {
			t.fail(Failure{UID: k.UID, Namespace: k.Namespace, Code: CodeLate, Message: fmt.Sprintf("a pod has not started within %v", k.within), Bound: k.Bound, At: due})
		}
	}
}

// mayBeLate reports whether the pod, which may still start, counts as late if it does not in time: it has not failed yet, in one way or the other.
func (k *known) mayBeLate() bool { return k.within > 0 && !k.late && k.class == "" }

// refuses reports whether the pool, which is open, refuses pods: two were refused for what it is, or one that was has been for a while, or pods
// in two namespaces failed. Two namespaces are two owners: one mistyped image must not close the pool for everybody.
func (t *Tracker) refuses(now time.Time) bool {
	ofPool, namespaces := 0, map[string]bool{}
	for _, f := range t.failures {
		namespaces[f.Namespace] = true
		if f.Class != OfPool {
			continue
		}
		ofPool++
		if _, there := t.pods[f.UID]; there && !now.Before(f.At.Add(t.rules.Alone)) {
			return true
		}
	}
	return ofPool >= 2 || len(namespaces) >= 2
}

// lapses reports whether a pool that is to be tried, and that nobody needed, counts as open at the time now: what it was closed for is too long ago.
func (t *Tracker) lapses(now time.Time) bool {
	return len(t.failures) == 0 && !now.Before(t.shut.Add(t.rules.Evidence))
}

func (t *Tracker) open(now time.Time) {
	t.state, t.since, t.until, t.rests, t.lapsed = Open, now, time.Time{}, 0, false
}

// ofProbe reports whether the pod that failed was bound after the pool was opened for a probe.
func (t *Tracker) ofProbe(f Failure) bool { return f.Bound.After(t.probed) }

func (t *Tracker) anyFailure(match func(Failure) bool) bool {
	for _, f := range t.failures {
		if match(f) {
			return true
		}
	}
	return false
}

// close closes the pool, because of failures that match. What is told of them is the last one of the kind that says most.
func (t *Tracker) close(now time.Time, match func(Failure) bool) {
	var why Failure
	weight := map[Class]int{OfPool: 2, Unknown: 1}
	for _, f := range t.failures {
		if match(f) && cmp.Or(cmp.Compare(weight[f.Class], weight[why.Class]), f.At.Compare(why.At), cmp.Compare(f.UID, why.UID)) > 0 {
			why = f
		}
	}
	rest := t.rules.FirstRest
	for range t.rests {
		rest = min(2*rest, t.rules.MaxRest)
	}
	t.state, t.until, t.closed, t.shut, t.lapsed = Refusing, now.Add(rest), t.newest, now, false
	t.code, t.text = why.Code, why.Message
	t.rests = min(t.rests+1, 30)
}

// schedule counts the pods that may still start, and finds when the judgement changes by itself.
func (t *Tracker) schedule(j *Judgement, now time.Time) {
	at := func(due time.Time) {
		if due.After(now) && (j.Next.IsZero() || due.Before(j.Next)) {
			j.Next = due
		}
	}
	at(t.until)
	if t.state == Probing {
		at(t.shut.Add(t.rules.Evidence))
	}
	j.Starting = t.Starting(nil, now)
	for _, k := range t.waiting {
		at(k.startsUntil(t.rules.StartWithin))
		if k.mayBeLate() {
			at(k.Bound.Add(k.within))
		}
	}
	for uid, f := range t.failures {
		at(f.At.Add(t.rules.Evidence))
		if _, there := t.pods[uid]; there && f.Class == OfPool {
			at(f.At.Add(t.rules.Alone))
		}
	}
	for _, template := range t.templates {
		at(template.Until)
	}
	for _, r := range t.refusedPods {
		at(r.bound.Add(t.rules.Forget))
	}
}

// trim drops the oldest of more entries than most.
func trim[K comparable, V any](entries map[K]V, most int, age func(K, V) (time.Time, string)) {
	for len(entries) > most {
		var oldest *K
		var first time.Time
		var name string
		for k, v := range entries {
			if at, id := age(k, v); oldest == nil || cmp.Or(at.Compare(first), cmp.Compare(id, name)) < 0 {
				oldest, first, name = &k, at, id
			}
		}
		delete(entries, *oldest)
	}
}

// newestOf returns the newest of the entries, at most as many, in the order of their age and name.
func newestOf[K comparable, V any](entries map[K]V, most int, age func(K, V) (time.Time, string)) []K {
	keys := slices.SortedFunc(maps.Keys(entries), func(a, b K) int {
		atA, idA := age(a, entries[a])
		atB, idB := age(b, entries[b])
		return cmp.Or(atA.Compare(atB), cmp.Compare(idA, idB))
	})
	return keys[max(0, len(keys)-most):]
}
