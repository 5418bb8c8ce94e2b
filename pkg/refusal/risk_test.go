package refusal

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestIsCostly(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		owned  bool
		want   bool
	}{
		"a Job's, Never":     {corev1.RestartPolicyNever, true, true},
		"a Job's, OnFailure": {corev1.RestartPolicyOnFailure, true, true},
		"a Deployment's":     {corev1.RestartPolicyAlways, true, false},
		"a bare pod":         {corev1.RestartPolicyNever, false, false}, // it has nothing that makes another
		"without a policy":   {"", true, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.policy}}
		if tc.owned {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", UID: "j", Controller: ptr.To(true)}}
		}
		if got := IsCostly(p); got != tc.want || PodOf(p).Costly != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// costly is a pod of a Job of one CPU, which was bound now.
func (s *script) costly(name string) Pod {
	p := s.bound(name)
	s.Gone(p.UID)
	p.Costly, p.MilliCPU = true, 1000
	s.See(p, s.now)
	return p
}

func (s *script) risks(what string, want Risk, placed ...types.UID) {
	s.Helper()
	if diff := cmp.Diff(want, s.Risk("ns/job", placed, s.now)); diff != "" {
		s.Errorf("%s, after %v (-want,+got):\n%s", what, s.now.Sub(begin), diff)
	}
}

// TestRisk follows a Job whose pods are sent two at a time, until the provider refuses.
func TestRisk(t *testing.T) {
	s := newScript(t)
	s.risks("nothing is known", Risk{})
	a, b := s.costly("ns/job/1"), s.costly("ns/job/2")
	s.bound("ns/web/1") // another's, which costs nothing
	answered := begin.Add(10 * time.Second)
	s.at(time.Second).risks("two are on their way", Risk{Unanswered: 2, Until: answered, Used: Size{3, 2000}})
	s.risks("and one that is not bound yet", Risk{Unanswered: 3, Until: answered, Used: Size{3, 2000}}, "ns/job/1", "ns/job/3")
	s.at(5 * time.Second).start(a)
	s.risks("one has started", Risk{Unanswered: 1, Until: answered, Sure: true, Proven: Size{1, 1000}, Used: Size{3, 2000}})
	s.at(10*time.Second).risks("the other was not refused for long enough", Risk{Sure: true, Proven: Size{1, 1000}, Used: Size{3, 2000}})
	s.start(b)
	s.at(20 * time.Second)
	c := s.costly("ns/job/3")
	s.refuse(c, OfPool)
	s.Gone(c.UID)
	again := s.now.Add(24 * time.Hour)
	lost := Risk{Lost: 1, Again: again, Doubt: true, Proven: Size{2, 2000}, Used: Size{3, 2000}}
	s.risks("one was refused, and is gone", lost)
	if other := s.Risk("ns/other", nil, s.now); other.Lost != 0 || other.Sure {
		t.Errorf("another owner has lost nothing, and risks the same: %+v", other)
	}
	s.hand()
	s.risks("by the next leader", lost)
	s.at(time.Minute).start(s.bound("ns/web/2"))
	s.Judge(s.now)
	s.risks("a pod has started since", Risk{Lost: 1, Again: again, Sure: true, Proven: Size{3, 2000}, Used: Size{4, 2000}})
	s.at(11 * time.Minute).Judge(s.now)
	s.risks("none has for ten minutes", Risk{Lost: 1, Again: again, Proven: Size{3, 2000}, Used: Size{4, 2000}})
	s.Gone("ns/web/2")
	s.Gone("ns/job/1")
	s.at(20*time.Second + 24*time.Hour).Judge(s.now)
	s.risks("a day later", Risk{Proven: Size{3, 2000}, Used: Size{2, 1000}})
	s.at(8 * 24 * time.Hour).Judge(s.now)
	s.risks("a week after it ran as much", Risk{Proven: Size{1, 1000}, Used: Size{2, 1000}})
}

// TestProvenAnew: what the provider runs at once counts for a week from when it last did, and no longer than until it refuses a pod for what the
// pool is.
func TestProvenAnew(t *testing.T) {
	s := newScript(t)
	proven := func(pods int) {
		t.Helper()
		s.Judge(s.now)
		if got := s.Risk("ns/job", nil, s.now).Proven; got != (Size{pods, int64(pods) * 1000}) {
			t.Errorf("after %v: %+v, want %d pods", s.now.Sub(begin), got, pods)
		}
	}
	run := func(names ...string) {
		for _, name := range names {
			s.start(s.costly(name))
		}
	}
	run("ns/job/1", "ns/job/2")
	s.Gone("ns/job/2")
	s.at(6 * 24 * time.Hour)
	proven(2)
	run("ns/job/3")
	s.Gone("ns/job/3")
	s.at(12 * 24 * time.Hour)
	proven(2)
	s.refuse(s.costly("ns/job/4"), Unknown)
	proven(2)
	s.refuse(s.costly("ns/job/5"), OfPool)
	proven(1)
}

// TestLateIsLost: a pod that is late is taken back, which its owner counts, unless it starts before that.
func TestLateIsLost(t *testing.T) {
	s := newScript(t)
	p := s.costly("ns/job/1")
	s.at(15 * time.Minute).Judge(s.now)
	if r := s.Risk("ns/job", nil, s.now); r.Lost != 1 {
		t.Errorf("late: %+v", r)
	}
	s.start(p)
	if r := s.Risk("ns/job", nil, s.now); r.Lost != 0 {
		t.Errorf("it has started: %+v", r)
	}
}

// TestRecall: pods that were refused while nobody looked count as of their binding, once, and those that a leader has counted not again.
func TestRecall(t *testing.T) {
	refused := func(name string, class Class, age time.Duration) Pod {
		return Pod{UID: types.UID(name), Namespace: "ns", Owner: "ns/job", Template: "t-" + name, Costly: true, Bound: begin.Add(-age), Refusal: &Refusal{Code: "C", Class: class}}
	}
	s := newScript(t)
	s.start(s.costly("ns/web/1"))
	pods := []Pod{refused("1", OfPool, time.Minute), refused("2", OfPool, 2*time.Hour), refused("3", OfPool, 25*time.Hour), refused("4", OfPod, time.Hour),
		refused("5", OfPod, 25*time.Hour), {UID: "6", Owner: "ns/job", Costly: true, Bound: begin}, refused("7", OfPool, -2*time.Hour)}
	for range 2 {
		for _, p := range pods {
			s.Recall(p, s.now)
		}
	}
	if r := s.Risk("ns/job", nil, s.now); r.Lost != 3 || !r.Again.Equal(begin.Add(22*time.Hour)) {
		t.Errorf("1, 2 and 4 were lost in the last day: %+v", r)
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
	s.Recall(refused("8", OfPool, 30*time.Second), s.now)
	s.is(Refusing)
	s.hand()
	until := s.is(Refusing).Until
	for _, p := range pods {
		s.Recall(p, s.now)
	}
	if j := s.at(time.Minute - time.Second).is(Refusing); !j.Until.Equal(until) || j.Failed != 2 {
		t.Errorf("they count again: %+v", j)
	}
	s.at(time.Minute).is(Probing)
}
