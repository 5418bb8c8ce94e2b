package breaker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

var begin = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// script is a Breaker with a clock that the test sets.
type script struct {
	*testing.T
	*Breaker
	now time.Time
}

func newScript(t *testing.T) *script {
	return &script{T: t, Breaker: New(NewRules(15 * time.Minute)), now: begin}
}

func (s *script) at(after time.Duration) *script {
	s.now = begin.Add(after)
	return s
}

// bound returns a pod that is bound now. Its name has the form namespace/owner/number.
func (s *script) bound(name string) Pod {
	parts := strings.Split(name, "/")
	p := Pod{UID: types.UID(name), Namespace: parts[0], Owner: types.UID(parts[0] + "/" + parts[1]), TemplateKey: parts[1], Bound: s.now}
	s.See(p, s.now)
	return p
}

func (s *script) refuse(p Pod, cause refusal.Cause) Change {
	p.Refusal = &refusal.Refusal{Code: "Code" + string(cause), Cause: cause, Message: "no"}
	return s.See(p, s.now)
}

func (s *script) start(p Pod) { p.Started = true; s.See(p, s.now) }

// hand replaces the Breaker with that of the next leader.
func (s *script) hand() {
	s.Helper()
	data := must.Get(json.Marshal(s.Memory()))(s)
	var m Memory
	must.NoError(s, json.Unmarshal(data, &m))
	pods := make([]Pod, 0, len(s.pods))
	for _, k := range s.pods {
		pods = append(pods, k.Pod)
	}
	s.Breaker = New(s.rules)
	s.Restore(m, s.now)
	s.SeeAll(pods, s.now, func(pod Pod, change Change) {
		if change.Refused != nil || change.Ineligible {
			s.Errorf("pod %s is news", pod.UID)
		}
	})
}

func (s *script) is(want State) Status {
	s.Helper()
	j := s.Status(s.now)
	if j.State != want {
		s.Errorf("after %v it is %s, want %s: %+v", s.now.Sub(begin), j.State, want, j)
	}
	return j
}

func TestTwoPodsClose(t *testing.T) {
	s := newScript(t)
	a, b := s.bound("ns/web/1"), s.bound("ns/web/2")
	s.refuse(a, refusal.PoolError)
	s.is(Open)
	s.refuse(a, refusal.PoolError) // the same pod again
	s.is(Open)
	s.at(time.Second).refuse(b, refusal.PoolError)
	j := s.is(Refusing)
	if want := s.now.Add(time.Minute); !j.Until.Equal(want) || !j.Next.Equal(want) || j.Code != "CodePool" || j.Message != "no" || j.Failed != 2 || !j.Since.Equal(s.now) {
		t.Errorf("it is %+v", j)
	}
}

func TestOnePodClosesAfterTwoMinutes(t *testing.T) {
	s := newScript(t)
	a := s.bound("ns/web/1")
	s.refuse(a, refusal.PoolError)
	if j := s.is(Open); !j.Next.Equal(begin.Add(2 * time.Minute)) {
		t.Errorf("it is looked at again at %v", j.Next)
	}
	s.at(2*time.Minute - time.Second).is(Open)
	s.at(2 * time.Minute).is(Refusing)

	s = newScript(t)
	s.refuse(s.bound("ns/web/1"), refusal.PoolError)
	s.at(time.Minute).Gone("ns/web/1")
	s.at(time.Hour - time.Second).is(Open) // the pod is gone
}

// TestBackOff follows a pool whose provider refuses pods for a while. Each failed trial doubles the backoff, and a
// trial that starts opens the pool.
func TestBackOff(t *testing.T) {
	s := newScript(t)
	s.refuse(s.bound("ns/web/a"), refusal.PoolError)
	s.refuse(s.bound("ns/web/b"), refusal.PoolError)
	s.is(Refusing)
	at := time.Duration(0)
	for i, rest := range []time.Duration{1, 2, 4, 8, 10, 10} {
		s.at(at + rest*time.Minute - time.Second).is(Refusing)
		at += rest * time.Minute
		s.at(at).is(HalfOpen)
		at += 20 * time.Second
		probe := s.at(at).bound(fmt.Sprint("ns/web/", i))
		if j := s.is(HalfOpen); len(j.Tests) != 1 {
			t.Errorf("%v are testing, want the probe", j.Tests)
		}
		s.refuse(probe, refusal.PoolError)
		s.is(Refusing)
	}
	at += 10 * time.Minute
	s.at(at).is(HalfOpen)
	probe := s.bound("ns/web/last")
	s.at(at + time.Minute).start(probe)
	if j := s.is(Open); j.Failed != 0 || j.Code != "" || !j.Until.IsZero() {
		t.Errorf("it is %+v", j)
	}
	s.refuse(s.bound("ns/web/x"), refusal.PoolError)
	s.refuse(s.bound("ns/web/y"), refusal.PoolError)
	if j := s.is(Refusing); !j.Until.Equal(s.now.Add(time.Minute)) {
		t.Errorf("it rests until %v, want a minute, as at first", j.Until)
	}
}

// TestHalfOpen checks the possible results of a trial.
func TestHalfOpen(t *testing.T) {
	probing := func(t *testing.T) (*script, Pod) {
		s := newScript(t)
		s.refuse(s.bound("ns/web/a"), refusal.PoolError)
		s.refuse(s.bound("ns/web/b"), refusal.PoolError)
		s.is(Refusing)
		s.at(time.Minute).is(HalfOpen)
		return s, s.bound("ns/web/probe")
	}
	t.Run("refused for what it is", func(t *testing.T) {
		s, probe := probing(t)
		s.refuse(probe, refusal.PodError)
		if j := s.is(HalfOpen); len(j.Tests) != 0 {
			t.Errorf("%v are testing", j.Tests)
		}
	})
	t.Run("refused with a code that is not known", func(t *testing.T) {
		s, probe := probing(t)
		s.refuse(probe, refusal.Unknown)
		if j := s.is(HalfOpen); len(j.Closings) != 1 || j.Closings[0].Namespace != "ns" || !j.Closings[0].Until.Equal(s.now.Add(time.Minute)) {
			t.Errorf("the pool is not closed for the namespace: %+v", j.Closings)
		}
		s.refuse(s.bound("other/web/1"), refusal.Unknown)
		if j := s.is(HalfOpen); len(j.Closings) != 2 {
			t.Errorf("the pool is not closed for both namespaces: %+v", j.Closings)
		}
	})
	t.Run("refused for nothing", func(t *testing.T) {
		s, probe := probing(t)
		s.refuse(probe, refusal.NeitherError)
		s.is(HalfOpen)
	})
	t.Run("deleted", func(t *testing.T) {
		s, probe := probing(t)
		if !s.Gone(probe.UID) {
			t.Error("it is not said that this changes anything")
		}
		if j := s.is(HalfOpen); len(j.Tests) != 0 {
			t.Errorf("%v are testing", j.Tests)
		}
	})
	t.Run("late", func(t *testing.T) {
		s, _ := probing(t)
		s.at(16*time.Minute - time.Second).is(HalfOpen)
		if j := s.at(16 * time.Minute).is(HalfOpen); len(j.Closings) != 1 {
			t.Errorf("the pool is not closed for the namespace: %+v", j.Closings)
		}
	})
	t.Run("a pod of before starts", func(t *testing.T) {
		s := newScript(t)
		early := s.bound("ns/web/early")
		s.refuse(s.bound("ns/web/a"), refusal.PoolError)
		s.refuse(s.bound("ns/web/b"), refusal.PoolError)
		s.is(Refusing)
		s.at(3 * time.Second)
		inFlight := s.bound("ns/web/in-flight")
		s.at(50 * time.Second).start(early)
		s.start(inFlight)
		s.is(Refusing)
		s.at(time.Minute).is(HalfOpen)
	})
}

// TestOneImageDoesNotClose: failures that a pod may have caused itself close the pool only if pods in two namespaces
// fail, the pool is not closed for one of these namespaces, and no pod starts in between.
func TestOneImageDoesNotClose(t *testing.T) {
	s := newScript(t)
	for i := range 5 {
		s.refuse(s.bound(fmt.Sprint("ns/web/", i)), refusal.Unknown)
		s.refuse(s.bound(fmt.Sprint("ns/api/", i)), refusal.Unknown)
	}
	s.is(Open)
	s.refuse(s.bound("other/web/1"), refusal.Unknown)
	if j := s.is(Open); len(j.Closings) != 1 {
		t.Errorf("it is %+v", j)
	}
	s.refuse(s.bound("third/web/1"), refusal.Unknown)
	if j := s.is(Refusing); j.Code != "CodeUnknown" || len(j.Closings) != 3 {
		t.Errorf("it is %+v", j)
	}

	s = newScript(t)
	s.bound("ns/web/1")
	s.bound("other/api/1")
	s.at(15*time.Minute - time.Second).is(Open)
	j := s.at(15 * time.Minute).is(Refusing)
	if j.Code != refusal.CodeLate || !strings.Contains(j.Message, "15m0s") {
		t.Errorf("it is %+v", j)
	}

	s = newScript(t)
	s.bound("ns/web/1")
	s.bound("other/api/1")
	s.at(time.Minute).start(s.bound("ns/web/2"))
	s.at(time.Hour).is(Open)
}

// TestLargeImages: each time that pods of an owner are late, they are evicted together, and its next pods have twice the
// time, until a pod starts in time again.
func TestLargeImages(t *testing.T) {
	s := newScript(t)
	s.bound("ns/big/1")
	s.bound("ns/big/2")
	s.at(15 * time.Minute)
	if lost := s.Lost(s.now); len(lost) != 2 {
		t.Errorf("%d pods are to be evicted, want both", len(lost))
	}
	s.Gone("ns/big/1")
	s.Gone("ns/big/2")
	within := func(name string) time.Duration {
		s.bound(name)
		return s.pods[types.UID(name)].within
	}
	if d := within("ns/big/3"); d != 30*time.Minute {
		t.Errorf("the next pod may take %v, want twice as long: the two were late at the same time", d)
	}
	s.at(40 * time.Minute).start(s.pods["ns/big/3"].Pod)
	s.is(Open)
	if d := within("ns/big/4"); d != 30*time.Minute {
		t.Errorf("after one that took longer than 15 minutes, a pod may take %v", d)
	}
	s.at(41 * time.Minute).start(s.pods["ns/big/4"].Pod)
	if d := within("ns/big/5"); d != 15*time.Minute {
		t.Errorf("after one that was quick, a pod may take %v", d)
	}
}

func TestTemplates(t *testing.T) {
	s := newScript(t)
	a := s.bound("ns/web/1")
	if change := s.refuse(a, refusal.PodError); !change.Ineligible || change.Refused == nil {
		t.Errorf("the first: %+v", change)
	}
	if change := s.refuse(s.bound("ns/web/2"), refusal.PodError); change.Ineligible || change.Refused == nil {
		t.Errorf("the second: %+v", change)
	}
	bare := s.bound("ns/bare/1")
	bare.TemplateKey = ""
	if change := s.refuse(bare, refusal.PodError); !change.Ineligible {
		t.Errorf("a pod that nothing controls: %+v", change)
	}
	j := s.is(Open)
	if got := j.Templates["web"]; len(j.Templates) != 1 || got.Code != "CodePod" || !got.Until.Equal(begin.Add(24*time.Hour)) || !j.Next.Equal(begin.Add(24*time.Hour)) {
		t.Errorf("it is %+v", j)
	}
	if j := s.at(24 * time.Hour).is(Open); len(j.Templates) != 0 {
		t.Errorf("after a day: %+v", j.Templates)
	}
	for i := range maxTemplates + 5 {
		s.at(24*time.Hour+time.Duration(i)*time.Second).refuse(s.bound(fmt.Sprintf("ns/t%d/1", i)), refusal.PodError)
	}
	j = s.is(Open)
	if _, oldest := j.Templates["t4"]; len(j.Templates) != maxTemplates || oldest {
		t.Errorf("%d templates are remembered", len(j.Templates))
	}
}

// TestSeenLater: when a kubelet tries again, the second refusal may have a cause that counts.
func TestSeenLater(t *testing.T) {
	s := newScript(t)
	a, b := s.bound("ns/web/1"), s.bound("ns/web/2")
	s.refuse(a, refusal.NeitherError)
	s.refuse(b, refusal.Unknown)
	s.is(Open)
	if change := s.refuse(a, refusal.PoolError); !change.StatusChanged || change.Refused != nil {
		t.Errorf("%+v", change)
	}
	s.refuse(b, refusal.PoolError)
	s.is(Refusing)
	s.refuse(b, refusal.NeitherError)
	if j := s.is(Refusing); j.Failed != 2 {
		t.Errorf("it is %+v", j)
	}
}

// TestRestoreNonsense: Restore drops or limits impossible values.
func TestRestoreNonsense(t *testing.T) {
	s := newScript(t)
	s.Restore(Memory{State: Refusing, Until: begin.Add(1000 * time.Hour), Backoffs: -3, Failures: []Failure{{}, {UID: "a", At: begin.Add(1000 * time.Hour)}},
		Slow: map[types.UID]Lateness{"o": {Times: 1000}}, Templates: map[string]Template{"t": {At: begin.Add(1000 * time.Hour)}}}, begin)
	if j := s.is(Refusing); j.Until.After(begin.Add(10*time.Minute)) || j.Failed != 0 || len(j.Templates) != 0 {
		t.Errorf("it is %+v", j)
	}
	s = newScript(t)
	later := begin.Add(1000 * time.Hour)
	s.Restore(Memory{Closings: []Closing{{Until: later}, {Scope: Scope{Namespace: "a"}, Until: later, Newest: later, Times: 1000}}, Ran: Scope{MilliCPU: -1}}, begin)
	if c := s.is(Open).Closings; len(c) != 1 || !c[0].Until.Equal(begin.Add(10*time.Minute)) || !c[0].Newest.Equal(begin) || c[0].Times != 30 || c[0].Tests != nil || s.ran != [2]Scope{} {
		t.Errorf("the closings are %+v", c)
	}
	s = newScript(t)
	s.Restore(Memory{State: "Confused"}, begin)
	s.is(Open)
}

// TestMayStart: refusal.MayStart and the Breaker's Pod agree on whether a pod may still start.
func TestMayStart(t *testing.T) {
	with := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}
		change(p)
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"pending": {with(func(*corev1.Pod) {}), true},
		"an init container runs": {with(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}), false},
		"its containers wait": {with(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}
		}), true},
		"runs":                          {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), false},
		"succeeded":                     {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), false},
		"refused":                       {with(func(p *corev1.Pod) { p.Status.Reason = refusal.ReasonProviderFailed }), false},
		"refused, and never to restart": {with(func(p *corev1.Pod) { p.Status.Reason, p.Status.Phase = refusal.ReasonProviderFailed, corev1.PodFailed }), false},
		"failed before it ran":          {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"evicted before it ran": {with(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
		}), false},
		"is being deleted": {with(func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(begin)) }), false},
	} {
		kept := PodOf(tc.pod, begin)
		if got := refusal.MayStart(tc.pod); got != tc.want || kept.mayStart() != tc.want {
			t.Errorf("%s: %v by its status, %v as kept, want %v", name, got, kept.mayStart(), tc.want)
		}
	}
}

// TestLatenessIsHandedOn: the next leader counts no late pod twice, and knows how late the owner's pods were.
func TestLatenessIsHandedOn(t *testing.T) {
	s := newScript(t)
	s.bound("ns/web/1")
	s.at(15 * time.Minute).is(Open)
	s.hand()
	if j := s.is(Open); j.Failed != 1 || s.slow["ns/web"].Times != 1 {
		t.Errorf("it is %+v, slow %v", j, s.slow)
	}
}

// TestStarting checks which pods count as tests until they start.
func TestStarting(t *testing.T) {
	s := newScript(t)
	is := func(what string, want int, placed ...types.UID) {
		t.Helper()
		if got := s.Tests(Scope{Namespace: "ns"}, byUID(placed), s.now); len(got) != want {
			t.Errorf("%s: %v may start, want %d", what, got, want)
		}
	}
	a := s.bound("ns/web/1")
	is("one that was bound", 1)
	is("one that was bound, and was placed before", 1, "ns/web/1")
	is("one more that was placed keeps no further place", 1, "ns/web/1", "ns/web/2")
	is("one more of another namespace", 2, "ns/web/1", "other/web/2")
	s.at(15*time.Minute - time.Second)
	is("a moment before it is too late", 1)
	s.at(15 * time.Minute)
	is("too late", 0)
	is("too late, and the scheduler's cache has it still", 0, "ns/web/1")
	b := s.bound("ns/web/2")
	s.refuse(b, refusal.PoolError)
	is("refused", 0)
	is("refused, and the scheduler's cache does not know", 0, "ns/web/2")
	s.See(b, s.now)
	is("its kubelet tries again", 1)
	s.at(40 * time.Minute).Status(s.now)
	if len(s.slow) != 1 || s.slow["ns/web"].Times != 1 || s.failures["ns/web/2"].Cause != refusal.PoolError {
		t.Errorf("one that was refused counts as late: %+v, %+v", s.slow, s.failures)
	}
	s.start(b)
	is("it starts after all", 0)
	s.start(a)
	s.bound("ns/web/3")
	s.Gone("ns/web/3")
	is("gone", 0)

	s = newScript(t)
	s.rules.StartWithin = 0
	s.bound("ns/web/1")
	s.at(14 * time.Minute)
	is("where no pod is late, one of 14 minutes", 1)
}

// byUID returns the namespaces of pods that are placed.
func byUID(placed []types.UID) map[types.UID]string {
	namespaces := map[types.UID]string{}
	for _, uid := range placed {
		namespaces[uid], _, _ = strings.Cut(string(uid), "/")
	}
	return namespaces
}

// TestTests checks which pods test a half-open pool, and who may be the next test.
func TestTests(t *testing.T) {
	s := newScript(t)
	s.bound("ns/web/before")
	s.at(time.Second)
	s.refuse(s.bound("ns/web/a"), refusal.PoolError)
	s.refuse(s.bound("ns/web/b"), refusal.PoolError)
	s.is(Refusing)
	s.at(time.Minute + time.Second).is(HalfOpen)
	s.at(2 * time.Minute)
	is := func(what string, want int, busy string, placed ...types.UID) {
		t.Helper()
		tests, got := s.Tests(Scope{}, byUID(placed), s.now), ""
		for _, namespace := range []string{"ns", "a", "b", "c"} {
			if _, is := tests.Busy(namespace, s.now); is {
				got += namespace
			}
		}
		if len(tests) != want || got != busy {
			t.Errorf("%s: %v test, and %s must not; want %d, and %s", what, tests, got, want, busy)
		}
	}
	is("one that was bound before the pool refused", 0, "")
	first := s.bound("ns/web/1")
	is("one that was bound", 1, "nsabc")
	is("one that was bound, and was placed before", 1, "nsabc", "ns/web/1")
	s.at(5*time.Minute - time.Second)
	is("a moment before it has had three minutes", 1, "nsabc")
	s.at(5 * time.Minute)
	is("after three minutes", 1, "ns")
	is("one of another namespace that was placed", 2, "nsabc", "a/web/1")
	s.bound("a/web/1")
	s.at(8 * time.Minute)
	is("both have had three minutes", 2, "nsa")
	s.bound("b/web/1")
	s.at(11 * time.Minute)
	is("three are as many as there may be", 3, "nsabc")
	foreign := s.bound("c/daemon/1")
	foreign.Foreign = true
	s.Gone(foreign.UID)
	s.See(foreign, s.now)
	s.Gone("b/web/1")
	is("a pod of another scheduler is no test", 2, "nsa")
	s.hand()
	is("the next leader counts them from when it sees them, and no pod of before", 2, "nsabc")
	s.bound("b/web/2")
	s.at(17 * time.Minute)
	is("the first is too late", 2, "ab")
	is("too late, and the scheduler's cache has it still", 2, "ab", "ns/web/1")
	s.start(first)
	s.is(Open)
}

// TestStartIsDatedBack: once a pod runs, the connector reports the pod's creation as the time of its binding. If the
// pod had waited while the pool was closed, its start still opens the pool. A pod that has started stays started,
// unless it is refused.
func TestStartIsDatedBack(t *testing.T) {
	breaker := New(NewRules(15 * time.Minute))
	now := begin
	see := func(uid string, bound time.Time, started bool, refused *refusal.Refusal) {
		breaker.See(Pod{UID: types.UID(uid), Namespace: "a", Owner: "web", Bound: bound, Started: started, Refusal: refused}, now)
	}
	quota := &refusal.Refusal{Code: "ContainerGroupQuotaReached", Cause: refusal.PoolError}
	for _, uid := range []string{"1", "2"} {
		see(uid, now, false, nil)
		see(uid, now, false, quota)
		breaker.Gone(types.UID(uid))
	}
	if got := breaker.Status(now).State; got != Refusing {
		t.Fatalf("after two refusals: %s", got)
	}
	now = now.Add(time.Minute)
	if got := breaker.Status(now).State; got != HalfOpen {
		t.Fatalf("after a minute: %s", got)
	}
	see("probe", now, false, nil)
	now = now.Add(30 * time.Second)
	see("probe", begin.Add(-time.Hour), true, nil)
	if got := breaker.Status(now).State; got != Open {
		t.Errorf("after the probe started: %s", got)
	}
	see("probe", begin.Add(-time.Hour), false, nil) // its container group is repaired
	if got := breaker.Status(now.Add(time.Hour)); got.Failed > 0 || got.Tests != nil {
		t.Errorf("a pod whose group is repaired counts as failed or starting: %+v", got)
	}
}
