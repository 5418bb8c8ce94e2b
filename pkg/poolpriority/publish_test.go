package poolpriority

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/status"
)

func TestPublisher(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := fake.NewClientset()
	var fail error
	writes := make(chan string, 100)
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "get" {
			return false, nil, nil
		}
		if fail != nil {
			writes <- "failed"
			return true, nil, fail
		}
		writes <- a.GetVerb()
		return false, nil, nil
	})
	fakeClock := testingclock.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	p := newPublisher("system/status", client)
	if s, err := p.load(ctx); s != nil || err != nil {
		t.Fatalf("load() = %v, %v before anything was published", s, err)
	}
	go p.run(ctx, fakeClock)
	// submit hands over a state and, when the publisher is through with it, lets the time pass that it waits for.
	submit := func(state capacity.State, fresh bool, wait time.Duration) {
		p.submit(&status.Status{Pools: []status.Pool{{Name: "user", State: state}}}, fresh)
		for deadline := time.Now().Add(5 * time.Second); wait > 0 && !fakeClock.HasWaiters(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the publisher does not wait for anything")
			}
		}
		fakeClock.Step(wait)
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-writes:
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("nothing, want %s", want)
		}
	}
	submit(capacity.CanGrow, false, publishInterval)
	expect("patch")
	submit(capacity.Full, false, publishInterval)
	expect("patch")
	submit(capacity.Full, false, 0)
	submit(capacity.Full, true, 0)
	time.Sleep(20 * time.Millisecond)
	if len(writes) > 0 {
		t.Errorf("%s although nothing changed", <-writes)
	}
	fakeClock.Step(heartbeat)
	submit(capacity.Full, true, publishInterval)
	expect("patch") // pods are held: it must not grow old
	fail = errors.New("no")
	submit(capacity.Growing, false, 2*publishInterval)
	expect("failed")
	for !fakeClock.HasWaiters() { // it tried again by itself
		time.Sleep(time.Millisecond)
	}
	expect("failed")
	fail = nil
	fakeClock.Step(4 * publishInterval)
	expect("patch")
	s, err := p.load(ctx)
	if err != nil || s.Pools[0].State != capacity.Growing || s.Memory.Written.IsZero() {
		t.Errorf("load() = %+v, %v", s, err)
	}
}

// TestRestore: a gatekeeper starts from what was published; since when a pool is in its state counts only if it was not too
// long ago. The pods' clocks are taken over when it leads, and until then no pod counts as waiting for long.
func TestRestore(t *testing.T) {
	for _, tc := range []struct {
		name string
		age  time.Duration
		want bool
	}{
		{"a minute old", time.Minute, true},
		{"as old as unknownGrace", 15 * time.Minute, true},
		{"older than unknownGrace", 15*time.Minute + time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			g := h.plugin.gate
			g.held = newHeld()
			now := g.clock.Now()
			since := now.Add(-tc.age - time.Hour).Truncate(time.Second)
			state := &status.Status{
				Pools:  []status.Pool{{Name: "system", State: capacity.Unknown, Since: since}, {Name: "gone", State: capacity.Full}},
				Memory: status.Memory{Written: now.Add(-tc.age), Unschedulable: map[types.UID]time.Time{"gated": since, "gone": since}},
			}
			data, err := state.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.sched.Profiles[ourProfile].ClientSet().CoreV1().ConfigMaps("pool-priority-system").Create(h.ctx,
				&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pool-priority-status"}, Data: data}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			g.clock = stopped{g.clock, now}
			created := since.Add(-24 * time.Hour)
			waiting := func(name string) *v1.Pod {
				return pod(name).UID(name).Conditions([]v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(created)}}).Obj()
			}
			for _, name := range []string{"gated", "plain"} {
				if err := h.sched.Profiles[ourProfile].SharedInformerFactory().Core().V1().Pods().Informer().GetIndexer().Add(waiting(name)); err != nil {
					t.Fatal(err)
				}
			}
			view := g.restore(h.ctx)
			if got := view.Pools[1].State == capacity.Unknown && view.Pools[1].Since.Equal(since); got != tc.want {
				t.Errorf("started from the published state: %v, want %v: %+v", got, tc.want, view.Pools[1])
			}
			g.takeOver(h.ctx)
			g.held.add(waiting("plain"), &gate.Decision{Burst: []gate.Verdict{{}}}, nil, now)
			for _, name := range []string{"gated", "plain"} {
				if got := g.held.since(waiting(name)); !got.IsZero() {
					t.Errorf("before it leads, %s waits since %v, want not known", name, got)
				}
			}
			g.leading.Store(true)
			g.takeOver(h.ctx)
			if got := g.held.since(waiting("gated")); !got.Equal(since) {
				t.Errorf("the pod that had gates waits since %v, want what was published: %v", got, since)
			}
			if got := g.held.since(waiting("plain")); !got.Equal(created) {
				t.Errorf("the other pod waits since %v, want what the API says: %v", got, created)
			}
			if _, leaked := g.held.firstFailed["gone"]; leaked {
				t.Error("the clock of a pod that is gone is kept")
			}
		})
	}
}

// TestTakeOverWithoutAnAnswer: an API server that does not say what was published is not waited for for ever.
func TestTakeOverWithoutAnAnswer(t *testing.T) {
	h := newHarness(t, aks(t))
	g := h.plugin.gate
	g.held = newHeld()
	client := fake.NewClientset()
	client.PrependReactor("get", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
	g.publisher = newPublisher(g.publisher.id, client)
	now := g.clock.Now()
	g.leading.Store(true)
	for _, tc := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {takeOverTimeout - 1, false}, {takeOverTimeout, true}} {
		g.clock = stopped{g.clock, now.Add(tc.after)}
		again := g.takeOver(h.ctx)
		if g.takenOver != tc.want || again.IsZero() != tc.want {
			t.Errorf("after %v: taken over %v, again at %v; want %v", tc.after, g.takenOver, again, tc.want)
		}
	}
}

// stopped is a clock that stands still.
type stopped struct {
	clock.WithTicker
	now time.Time
}

func (c stopped) Now() time.Time { return c.now }

// TestUnknownToAPI: the clocks of pods that waited for scheduling gates are published, and no others.
func TestUnknownToAPI(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	condition := func(name string, at time.Time, reason string) *v1.Pod {
		return pod(name).UID(name).Conditions([]v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(at)}}).Obj()
	}
	h := newHeld()
	closed := &gate.Decision{Burst: []gate.Verdict{{}}}
	h.add(pod("new").UID("new").Obj(), closed, nil, now)
	h.add(condition("plain", now.Add(-time.Second), v1.PodReasonUnschedulable), closed, nil, now)
	h.add(condition("gated", now.Add(-time.Hour), v1.PodReasonSchedulingGated), closed, nil, now)
	h.add(condition("gated-later", now.Add(-time.Hour), v1.PodReasonSchedulingGated), closed, nil, now.Add(time.Minute))
	h.update(condition("gated", now.Add(-time.Hour), v1.PodReasonUnschedulable)) // the condition keeps its time
	got := h.unknownToAPI(10)
	if len(got) != 2 || !got["gated"].Equal(now) || !got["gated-later"].Equal(now.Add(time.Minute)) {
		t.Errorf("unknownToAPI() = %v, want the two pods that had gates", got)
	}
	if got := h.unknownToAPI(1); len(got) != 1 || got["gated"].IsZero() {
		t.Errorf("unknownToAPI(1) = %v, want the one that waits for longer", got)
	}
}

// TestObserve: a closed gate holds nothing back, and no taint is looked past.
func TestObserve(t *testing.T) {
	h := newHarness(t, loadConfig(t, "../../test/integration/testdata/observe.yaml"))
	h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), virtualNode("virtual"))
	h.setCapacity(capacity.CanGrow, capacity.CanGrow)
	tolerant := func(name string) *v1.Pod { return pod(name).Toleration("virtual-kubelet.io/provider").Obj() }
	for i, want := range []string{"user-1", "virtual", "virtual"} { // maxPods is 1
		if node, err := h.schedule(tolerant(strings.Repeat("x", i+1))); node != want {
			t.Errorf("pod %d is on %q (%v), want %q", i, node, err, want)
		}
	}
	if node, err := h.schedule(pod("plain").Obj()); err == nil {
		t.Errorf("a pod that does not tolerate the virtual node is on %q", node)
	}
	if n := h.plugin.gate.held.count(); n != 0 {
		t.Errorf("%d pods are held", n)
	}
}
