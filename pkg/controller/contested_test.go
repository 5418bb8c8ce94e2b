package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// arena has a node that another component changes, too.
type arena struct {
	*testing.T
	r        *GateTaint
	clock    *clocktesting.FakeClock
	recorder *record.FakeRecorder
	client   client.Client
	writes   []time.Duration // since it began
	began    time.Time
	mutates  func(*corev1.Node) // a webhook that changes the written node; nil: none
}

func newArena(t *testing.T, n *corev1.Node) *arena {
	a := &arena{T: t, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)), recorder: record.NewFakeRecorder(1000)}
	a.began = a.clock.Now()
	a.client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(n).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			a.writes = append(a.writes, a.clock.Since(a.began))
			if a.mutates == nil {
				return c.Patch(ctx, o, p, opts...)
			}
			a.mutates(o.(*corev1.Node)) // the stored node stays as it is
			return nil
		}}).Build()
	a.r = &GateTaint{Client: a.client, Pools: pools(t), Recorder: a.recorder, Clock: a.clock}
	return a
}

// change changes the node as another component does.
func (a *arena) change(change func(*corev1.Node)) {
	a.Helper()
	n := a.node()
	change(n)
	must.NoError(a, a.client.Update(context.Background(), n))
}

func (a *arena) node() *corev1.Node {
	a.Helper()
	n := &corev1.Node{}
	must.NoError(a, a.client.Get(context.Background(), client.ObjectKey{Name: "virtual"}, n))
	return n
}

func (a *arena) reconcile() reconcile.Result {
	a.Helper()
	result := must.Get(a.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "virtual"}}))(a)
	return result
}

// pass lets the time d pass. Every 100 ms it reconciles the node, as if the node's status had changed, and then calls
// somebody.
func (a *arena) pass(d time.Duration, somebody func()) {
	a.Helper()
	for end := a.clock.Now().Add(d); a.clock.Now().Before(end); a.clock.SetTime(a.clock.Now().Add(100 * time.Millisecond)) {
		if result := a.reconcile(); result.RequeueAfter <= 0 && !a.r.InLine(a.node()) {
			a.Fatal("it is not tried again")
		}
		if somebody != nil {
			somebody()
		}
	}
}

func untaint(n *corev1.Node) { n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, pool.IsGateTaint) }

// TestContested: another component removes the gate taint again and again, after the write or, as a webhook, in the
// write. The controller sets the taint at growing intervals, from a second to a minute, and writes one event. Once the
// removals have stopped, it sets a missing taint at once again.
func TestContested(t *testing.T) {
	for _, inTheWrite := range []bool{false, true} {
		a := newArena(t, node("virtual", map[string]string{"type": "virtual-kubelet"}, other))
		var mutator func()
		if inTheWrite {
			a.mutates = untaint
		} else {
			mutator = func() {
				if pool.HasGateTaint(a.node()) {
					a.change(untaint)
				}
			}
		}
		a.pass(30*time.Minute, mutator)
		for i := 1; i < len(a.writes); i++ {
			gap := a.writes[i] - a.writes[i-1]
			if gap < time.Second || i > 1 && gap < a.writes[i-1]-a.writes[i-2] || i > 8 && gap != time.Minute {
				t.Fatalf("in the write %v: written after %v", inTheWrite, a.writes)
			}
		}
		if n := len(a.writes); n < 30 || n > 40 {
			t.Errorf("in the write %v: %d writes in half an hour: %v", inTheWrite, n, a.writes)
		}
		if n := len(a.recorder.Events); n != 1 {
			t.Fatalf("in the write %v: %d events, want one", inTheWrite, n)
		}
		const want = "Warning GateTaintContested the gate taint poolpriority.dev/gate=pool-priority-scheduler:NoSchedule was set 3 times and taken off again each time. Another controller, an admission policy or a webhook"
		if event := <-a.recorder.Events; !strings.HasPrefix(event, want) {
			t.Errorf("the event says %q", event)
		}

		// When the component is gone, the taint is set within a minute. A single removal after that is corrected at
		// once.
		a.mutates = nil
		a.pass(time.Minute+time.Second, nil)
		if !pool.HasGateTaint(a.node()) {
			t.Fatalf("in the write %v: no taint a minute after nobody takes it away any more", inTheWrite)
		}
		a.pass(time.Minute, nil)
		for _, after := range []time.Duration{0, time.Minute} { // and again a minute later
			a.pass(after, nil)
			a.change(untaint)
			if a.reconcile(); !pool.HasGateTaint(a.node()) {
				t.Errorf("in the write %v: the taint is not set at once when that is over", inTheWrite)
			}
		}
		if n := len(a.recorder.Events); n != 0 {
			t.Errorf("in the write %v: %d more events", inTheWrite, n)
		}
	}
}

// TestNotContested: if a node was replaced or moved to another pool, its taints are changed at once, however often that
// happens.
func TestNotContested(t *testing.T) {
	a := newArena(t, node("virtual", map[string]string{"type": "virtual-kubelet"}))
	for i := range 20 {
		burst := i%2 == 0
		a.change(func(n *corev1.Node) {
			n.Labels["type"] = map[bool]string{true: "virtual-kubelet", false: "metal"}[burst]
		})
		if a.reconcile(); pool.HasGateTaint(a.node()) != burst {
			t.Fatalf("relabelled %d times: gated: %v", i, !burst)
		}
	}
	for i := range 5 { // as if virtual-kubelet creates the node again
		n := a.node()
		must.NoError(t, a.client.Delete(context.Background(), n))
		anew := node("virtual", map[string]string{"type": "virtual-kubelet"})
		anew.UID = "uid-" + n.UID
		must.NoError(t, a.client.Create(context.Background(), anew))
		if a.reconcile(); !pool.HasGateTaint(a.node()) {
			t.Fatalf("made anew %d times: no taint", i)
		}
	}
	if n := len(a.recorder.Events); n != 0 {
		t.Errorf("%d events", n)
	}
}

// TestContestedRemoval: the same holds if another component sets the taint on a node that should not have it.
func TestContestedRemoval(t *testing.T) {
	a := newArena(t, node("virtual", map[string]string{"mode": "user"}))
	a.pass(10*time.Minute, func() {
		if !pool.HasGateTaint(a.node()) {
			a.change(func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, gateTaint) })
		}
	})
	if n := len(a.writes); n < 10 || n > 18 {
		t.Errorf("%d writes in 10 minutes: %v", n, a.writes)
	}
	if n := len(a.recorder.Events); n != 1 {
		t.Fatalf("%d events, want one", n)
	}
	if event := <-a.recorder.Events; !strings.Contains(event, "was taken off 3 times and set again each time") || strings.Contains(event, denial.Consequence) {
		t.Errorf("the event says %q", event)
	}
}
