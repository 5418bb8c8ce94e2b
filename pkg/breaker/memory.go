package breaker

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxFailures, maxTemplates and maxOwners bound the entries that a Breaker keeps beside its pods; maxOwners also bounds the
// refused pods of owners that count failures. handedCounted and handedTemplates bound the entries that the next leader gets.
// The oldest entries are dropped first. If the entry of an ineligible template is dropped, one more pod of the template is
// refused.
const (
	maxFailures, maxTemplates, maxOwners = 100, 1000, 1000
	handedCounted, handedTemplates       = 500, 200
)

// Memory is the state that the next leader's Breaker gets from the previous leader's Breaker.
type Memory struct {
	// State, Since, Until, Code and Message are as in Status. Backoffs is how many times the pool has become Refusing
	// since it was last Open, at most 30.
	State    State     `json:"state,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`
	Backoffs int       `json:"rests,omitempty"`
	Code     string    `json:"code,omitempty"`
	Message  string    `json:"message,omitempty"`
	// Accepted is the latest binding time of the pods that have started. Closed is the latest binding time that was
	// seen before the pool became Refusing. HalfOpened is the latest binding time that was seen before the pool became
	// HalfOpen.
	Accepted   time.Time `json:"accepted,omitzero"`
	Closed     time.Time `json:"closed,omitzero"`
	HalfOpened time.Time `json:"probed,omitzero"`
	// Shut is when the pool last became Refusing, by the clock of the leader.
	Shut time.Time `json:"shut,omitzero"`
	// Failures has the pods that failed since a pod last started. Counted has the pods that are still on the pool's
	// nodes, and whose failure was counted.
	Failures []Failure   `json:"failures,omitempty"`
	Counted  []types.UID `json:"counted,omitempty"`
	// Slow has the owners whose last pods were late.
	Slow map[types.UID]Lateness `json:"slow,omitempty"`
	// Templates are the ineligible templates.
	Templates map[string]Template `json:"templates,omitempty"`
	// Closings has the pods for which the pool is closed. Ran is at least as large as each pod that ran lately.
	Closings []Closing `json:"closings,omitempty"`
	Ran      Scope     `json:"ran,omitzero"`
}

// IsZero reports whether the Memory has nothing for the next leader.
func (m Memory) IsZero() bool {
	return m.State == "" && len(m.Failures) == 0 && len(m.Counted) == 0 && len(m.Slow) == 0 && len(m.Templates) == 0 && len(m.Closings) == 0 && m.Ran == Scope{} && m.Accepted.IsZero()
}

// Memory returns the state for the next leader. If neither a pod nor the pool's state has changed, Memory returns the
// same value again.
func (b *Breaker) Memory() Memory {
	var m Memory
	if b.state != Open {
		m = Memory{State: b.state, Since: b.since.UTC(), Until: b.until.UTC(), Backoffs: b.rests, Code: b.code, Message: b.text, Closed: b.closed.UTC(), HalfOpened: b.probed.UTC(), Shut: b.shut.UTC()}
	}
	if m.Accepted = b.accepted.UTC(); b.state == Open && len(b.failures) == 0 {
		m.Accepted = m.Accepted.Truncate(time.Minute) // without failures, a rounded time is enough, and the Memory does not change with each pod
	}
	for _, uid := range newestOf(b.failures, maxFailures, func(uid types.UID, f Failure) (time.Time, string) { return f.At, string(uid) }) {
		f := b.failures[uid]
		f.Bound, f.At = f.Bound.UTC(), f.At.UTC()
		m.Failures = append(m.Failures, f)
	}
	counted := map[types.UID]time.Time{}
	for uid, k := range b.pods {
		if !k.Started && (k.cause != "" || k.late) {
			counted[uid] = k.Bound
		}
	}
	m.Counted = newestOf(counted, handedCounted, func(uid types.UID, bound time.Time) (time.Time, string) { return bound, string(uid) })
	m.Slow, m.Templates = map[types.UID]Lateness{}, map[string]Template{}
	for _, owner := range newestOf(b.slow, handedCounted, func(uid types.UID, s Lateness) (time.Time, string) { return s.At, string(uid) }) {
		m.Slow[owner] = Lateness{Times: b.slow[owner].Times, At: b.slow[owner].At.UTC()}
	}
	for _, key := range newestOf(b.templates, handedTemplates, func(key string, x Template) (time.Time, string) { return x.At, key }) {
		x := b.templates[key]
		x.At, x.Until = x.At.UTC(), time.Time{} // the next leader computes Until itself
		m.Templates[key] = x
	}
	for _, c := range b.listed() {
		c.Until, c.Newest = c.Until.UTC(), c.Newest.UTC()
		m.Closings = append(m.Closings, c)
	}
	m.Ran = b.ran[0].max(b.ran[1])
	return m
}

// DropOldest drops most refusals, the oldest first, and returns how many.
func (m *Memory) DropOldest() int {
	count := func() int { return len(m.Failures) + len(m.Counted) + len(m.Slow) + len(m.Templates) }
	all, keep := count(), max(len(m.Failures), len(m.Counted), len(m.Slow), len(m.Templates))/10
	m.Failures, m.Counted = m.Failures[max(0, len(m.Failures)-keep):], m.Counted[max(0, len(m.Counted)-keep):]
	m.Slow, m.Templates = maps.Clone(m.Slow), maps.Clone(m.Templates)
	trim(m.Slow, keep, func(uid types.UID, x Lateness) (time.Time, string) { return x.At, string(uid) })
	trim(m.Templates, keep, func(key string, x Template) (time.Time, string) { return x.At, key })
	return all - count()
}

// Restore sets the state of a new Breaker at the time now from the Memory of the previous leader. The Memory comes from
// a ConfigMap that others can change, so Restore drops or limits impossible values.
func (b *Breaker) Restore(m Memory, now time.Time) {
	if m.State == Refusing || m.State == HalfOpen {
		b.state, b.since, b.rests = m.State, m.Since, min(max(m.Backoffs, 1), 30)
		b.code, b.text, b.closed, b.probed, b.shut = m.Code, m.Message, m.Closed, m.HalfOpened, m.Shut
		if m.State == Refusing {
			b.until = earliest(m.Until, now.Add(b.rules.MaxBackoff)) // the previous leader's clock may have been ahead
		}
	}
	b.accepted = m.Accepted
	for _, at := range []*time.Time{&b.accepted, &b.closed, &b.probed, &b.shut} {
		*at = earliest(*at, now) // the previous leader's clock may have been ahead
	}
	b.newest = latest(b.closed, b.probed, b.accepted)
	for _, f := range m.Failures[max(0, len(m.Failures)-maxFailures):] {
		if f.UID != "" && !f.At.After(now.Add(b.rules.Evidence)) {
			b.failures[f.UID] = f
			b.newest = latest(b.newest, f.Bound)
		}
	}
	for _, uid := range m.Counted[max(0, len(m.Counted)-handedCounted):] {
		b.counted[uid] = true
	}
	for owner, s := range m.Slow {
		if len(b.slow) < maxOwners && s.Times > 0 {
			b.slow[owner] = s
		}
	}
	for key, x := range m.Templates {
		if len(b.templates) < maxTemplates && !x.At.After(now.Add(b.rules.Template)) {
			x.Until = x.At.Add(b.rules.ban(x.MayPass))
			b.templates[key] = x
		}
	}
	for _, c := range m.Closings[:min(len(m.Closings), maxClosings)] {
		c.Until, c.Newest = earliest(c.Until, now.Add(b.rules.MaxBackoff)), earliest(c.Newest, now)
		c.Times, c.Tests = min(max(c.Times, 1), 30), nil
		if c.Scope != (Scope{}) { // a Closing of all pods is the pool's state
			b.closings[c.Scope] = c
		}
	}
	b.ran, b.ranSince = [2]Scope{m.Ran.max(Scope{})}, now
}

// byBinding compares pods by their binding time.
func byBinding(a, b Pod) int { return a.Bound.Compare(b.Bound) }

// SeeAll processes all pods on the pool's nodes, in the order of their binding, and forgets all other pods. It calls
// heard with each pod and its change.
func (b *Breaker) SeeAll(pods []Pod, now time.Time, heard func(Pod, Change)) {
	there := make(map[types.UID]bool, len(pods))
	for _, pod := range slices.SortedFunc(slices.Values(pods), byBinding) {
		there[pod.UID] = true
		heard(pod, b.See(pod, now))
	}
	for uid := range b.pods {
		if !there[uid] {
			b.Gone(uid)
		}
	}
	maps.DeleteFunc(b.counted, func(uid types.UID, _ bool) bool { return !there[uid] })
}

// latest returns the latest of the times.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// earliest returns the earliest of the times.
func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }
