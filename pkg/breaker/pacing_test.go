package breaker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/refusal"
)

func TestCountsFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		owned  bool
		want   bool
	}{
		"a Job's, Never":     {corev1.RestartPolicyNever, true, true},
		"a Job's, OnFailure": {corev1.RestartPolicyOnFailure, true, true},
		"a Deployment's":     {corev1.RestartPolicyAlways, true, false},
		"a bare pod":         {corev1.RestartPolicyNever, false, false}, // no controller replaces it
		"without a policy":   {"", true, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.policy}}
		if tc.owned {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", UID: "j", Controller: ptr.To(true)}}
		}
		if got := CountsFailures(p); got != tc.want || PodOf(p, begin).CountsFailures != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// ofJob returns a pod of a Job that requests one CPU and is bound now.
func (s *script) ofJob(name string) Pod {
	p := s.bound(name)
	s.Gone(p.UID)
	p.CountsFailures, p.MilliCPU = true, 1000
	s.See(p, s.now)
	return p
}

// paces compares the pacing of ns/job with want.
func (s *script) paces(what string, want Pacing, placed ...types.UID) {
	s.Helper()
	if diff := cmp.Diff(&want, s.Pacing("ns/job", byUID(placed), s.now), cmpopts.EquateEmpty()); diff != "" {
		s.Errorf("%s, after %v (-want,+got):\n%s", what, s.now.Sub(begin), diff)
	}
}

// TestPacing follows a Job whose pods start, until the provider refuses one.
func TestPacing(t *testing.T) {
	s := newScript(t)
	of := func(o OwnerPacing) map[types.UID]OwnerPacing { return map[types.UID]OwnerPacing{"ns/job": o} }
	s.paces("at first", Pacing{})
	a, b := s.ofJob("ns/job/1"), s.ofJob("ns/job/2")
	s.bound("ns/web/1") // its owner counts no failures
	due := begin.Add(10 * time.Second)
	s.at(time.Second).paces("two are starting", Pacing{Used: Size{3, 2000}, Owners: of(OwnerPacing{Starting: []time.Time{due, due}})})
	s.paces("and one that is not bound yet", Pacing{Used: Size{3, 2000}, Owners: of(OwnerPacing{Starting: []time.Time{due, due, due.Add(time.Second)}})}, "ns/job/1", "ns/job/3")
	trusted := begin.Add(5*time.Second + 10*time.Minute)
	s.at(5 * time.Second).start(a)
	s.paces("one has started", Pacing{Peak: Size{1, 1000}, Recent: Size{1, 1000}, Used: Size{3, 2000}, TrustedUntil: trusted, Owners: of(OwnerPacing{Starting: []time.Time{due}})})
	s.start(b)
	s.at(20 * time.Second)
	c := s.ofJob("ns/job/3")
	s.refuse(c, refusal.PoolError)
	s.Gone(c.UID)
	refused := of(OwnerPacing{Refused: []time.Time{begin.Add(20*time.Second + 24*time.Hour)}})
	s.paces("one was refused, and is gone", Pacing{Peak: Size{2, 2000}, Recent: Size{2, 2000}, Used: Size{3, 2000}, Owners: refused})
	if other := s.Pacing("ns/other", nil, s.now); len(other.Owners) > 0 {
		t.Errorf("another owner has %+v", other.Owners)
	}
	s.at(time.Minute).start(s.bound("ns/web/2"))
	s.Status(s.now)
	s.paces("a pod has started since", Pacing{Peak: Size{3, 2000}, Recent: Size{3, 2000}, Used: Size{4, 2000}, TrustedUntil: begin.Add(11 * time.Minute), Owners: refused})
	s.Gone("ns/web/2")
	s.Gone("ns/job/1")
	s.at(20*time.Second + 24*time.Hour).Status(s.now)
	s.paces("a day later", Pacing{Peak: Size{3, 2000}, Recent: Size{3, 2000}, Used: Size{2, 1000}, TrustedUntil: begin.Add(11 * time.Minute)})
	s.refuse(s.ofJob("ns/job/4"), refusal.Unknown)
	if peak := s.Pacing("ns/job", nil, s.now).Peak; peak != (Size{3, 2000}) {
		t.Errorf("a refusal that may not be the pool's: %+v", peak)
	}
	s.refuse(s.ofJob("ns/job/5"), refusal.PoolError)
	if peak := s.Pacing("ns/job", nil, s.now).Peak; peak != (Size{1, 1000}) {
		t.Errorf("the pool's: %+v, want what runs", peak)
	}
	s.start(s.ofJob("ns/job/6"))
	s.start(s.ofJob("ns/job/7"))
	if peak := s.Pacing("ns/job", nil, s.now).Peak; peak != (Size{3, 3000}) {
		t.Errorf("more run: %+v", peak)
	}
	s.Gone("ns/job/6")
	s.Gone("ns/job/7")
	s.at(24*time.Hour + 11*time.Minute).start(s.ofJob("ns/job/8"))
	if p := s.Pacing("ns/job", nil, s.now); p.Peak != (Size{3, 3000}) || p.Recent != (Size{2, 2000}) {
		t.Errorf("a pod has started after none had for ten minutes: %+v, want recently what runs", p)
	}
	s.Gone("ns/job/2")
	s.hand()
	if p := s.Pacing("ns/job", nil, s.now); p.Peak != (Size{1, 1000}) || !p.TrustedUntil.IsZero() {
		t.Errorf("a new process knows what runs: %+v", p)
	}
}

// refusedOf returns, for each pod of ns/job that counts as refused, when its refusal is forgotten.
func (s *script) refusedOf() []time.Time {
	return s.Pacing("ns/job", nil, s.now).Owners["ns/job"].Refused
}

// TestLateIsRefused: a pod that does not start in time counts as refused, because its owner counts the eviction. It
// does not count if it starts before the eviction.
func TestLateIsRefused(t *testing.T) {
	s := newScript(t)
	p := s.ofJob("ns/job/1")
	s.at(15 * time.Minute).Status(s.now)
	if n := len(s.refusedOf()); n != 1 {
		t.Errorf("late: %d", n)
	}
	s.start(p)
	if n := len(s.refusedOf()); n != 0 {
		t.Errorf("it has started: %d", n)
	}
}

// TestRecall: a pod that was refused while no scheduler ran counts once, at the time of its binding.
func TestRecall(t *testing.T) {
	refused := func(name string, cause refusal.Cause, age time.Duration) Pod {
		return Pod{UID: types.UID(name), Namespace: "ns", Owner: "ns/job", TemplateKey: "t-" + name, CountsFailures: true, Bound: begin.Add(-age), Refusal: &refusal.Refusal{Code: "C", Cause: cause}}
	}
	s := newScript(t)
	s.start(s.ofJob("ns/web/1"))
	pods := []Pod{refused("1", refusal.PoolError, time.Minute), refused("2", refusal.PoolError, 2*time.Hour), refused("3", refusal.PoolError, 25*time.Hour), refused("4", refusal.PodError, time.Hour),
		refused("5", refusal.PodError, 25*time.Hour), {UID: "6", Owner: "ns/job", CountsFailures: true, Bound: begin}, refused("7", refusal.PoolError, -2*time.Hour)}
	for range 2 {
		for _, p := range pods {
			s.Recall(p, s.now)
		}
	}
	if r := s.refusedOf(); len(r) != 3 || !r[0].Equal(begin.Add(22*time.Hour)) {
		t.Errorf("1, 2 and 4 were refused in the last day: %v", r)
	}
	if j := s.is(Open); j.Failed != 0 || len(j.Templates) != 1 || !j.Templates["t-4"].Until.Equal(begin.Add(23*time.Hour)) {
		t.Errorf("a pod that was bound later runs: %+v", j)
	}

	s = newScript(t)
	for range 2 {
		s.Recall(pods[0], s.now)
	}
	if j := s.is(Open); j.Failed != 1 {
		t.Errorf("one that was refused counts: %+v", j)
	}
	s.Recall(refused("8", refusal.PoolError, 30*time.Second), s.now)
	s.is(Refusing)
	s.hand()
	until := s.is(Refusing).Until
	for _, p := range pods {
		s.Recall(p, s.now)
	}
	if j := s.at(time.Minute - time.Second).is(Refusing); !j.Until.Equal(until) || j.Failed != 2 {
		t.Errorf("they count again: %+v", j)
	}
	s.at(time.Minute).is(HalfOpen)
}
