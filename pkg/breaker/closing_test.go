package breaker

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/refusal"
)

// closes checks which pods the Open pool is closed for.
func (s *script) closes(want map[Scope]bool) {
	s.Helper()
	status := s.is(Open)
	for pod, want := range want {
		closed := false
		for _, c := range status.Closings {
			closed = closed || s.now.Before(c.Until) && c.Selects(pod)
		}
		if closed != want {
			s.Errorf("after %v: closed for %+v is %v, want %v: %+v", s.now.Sub(begin), pod, closed, want, status.Closings)
		}
	}
}

// TestOneNamespaceFails: failures that may have a local cause close the pool only for the namespace that has them.
func TestOneNamespaceFails(t *testing.T) {
	a, b := Scope{Namespace: "a"}, Scope{Namespace: "b"}
	s := newScript(t)
	s.refuse(s.bound("a/web/1"), refusal.Unknown)
	s.closes(map[Scope]bool{a: false, b: false})
	s.refuse(s.bound("a/web/2"), refusal.Unknown)
	s.closes(map[Scope]bool{a: true, b: false})
	if next := s.is(Open).Next; !next.Equal(begin.Add(time.Minute)) {
		t.Errorf("it is looked at again at %v", next)
	}
	s.hand()
	s.closes(map[Scope]bool{a: true, b: false})
	s.at(time.Minute).closes(map[Scope]bool{a: false, b: false})
	trial := s.bound("a/web/3")
	s.bound("b/web/0")
	if c := s.is(Open).Closings; len(c) != 1 || len(c[0].Tests) != 1 {
		t.Errorf("one pod tests the provider: %+v", c)
	}
	s.refuse(trial, refusal.Unknown) // one more is enough, and the pause doubles
	s.closes(map[Scope]bool{a: true, b: false})
	s.at(3*time.Minute - time.Second).closes(map[Scope]bool{a: true})
	s.at(3 * time.Minute).closes(map[Scope]bool{a: false})
	s.start(s.bound("a/web/4"))
	if c := s.is(Open).Closings; len(c) != 0 {
		t.Errorf("a pod has started: %+v", c)
	}
	s.at(4*time.Minute).refuse(s.bound("a/web/5"), refusal.Unknown) // the first since a pod started
	s.closes(map[Scope]bool{a: false, b: false})
	s.refuse(s.bound("b/web/1"), refusal.Unknown) // two namespaces
	s.is(Refusing)

	s = newScript(t)
	s.bound("a/web/1")
	s.bound("a/web/2")
	s.at(16 * time.Minute).closes(map[Scope]bool{a: true, b: false}) // both are late
}

// TestNoCapacityForLargePods: a lack of capacity for pods larger than all that ran closes the pool only for such pods.
func TestNoCapacityForLargePods(t *testing.T) {
	const gib = 1 << 30
	small, large := Scope{MilliCPU: 1000, Memory: gib}, Scope{MilliCPU: 31000, Memory: gib}
	s := newScript(t)
	pod := func(name string, size Scope) Pod {
		return Pod{UID: types.UID(name), Namespace: "a", Owner: types.UID(name), Bound: s.now, MilliCPU: size.MilliCPU, Billed: size}
	}
	noCapacity := func(name string, size Scope) {
		p := pod(name, size)
		s.See(p, s.now)
		p.Refusal = &refusal.Refusal{Code: "ServiceUnavailable", Cause: refusal.PoolError}
		s.See(p, s.now)
	}
	ran := pod("ran", small)
	ran.Started = true
	s.See(ran, s.now)
	s.Gone("ran")
	s.hand()
	s.at(time.Minute)
	noCapacity("1", large)
	noCapacity("2", large)
	s.closes(map[Scope]bool{small: false, large: true, {MilliCPU: 32000, Memory: 2 * gib}: true, {MilliCPU: 32000, Memory: gib / 2}: false})
	s.at(24 * time.Hour).is(Open)
	s.at(49 * time.Hour).is(Open) // nobody knows any more that a smaller pod ran
	noCapacity("3", large)
	noCapacity("4", large)
	s.is(Refusing)

	s = newScript(t)
	s.See(ran, s.now)
	noCapacity("1", small) // as large as a pod that ran
	noCapacity("2", small)
	s.is(Refusing)
}
