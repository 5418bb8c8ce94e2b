package poolpriority

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// TestAssumedPodNotBound: the pod first is assumed on the last place of the user pool, so the pod second gets a worse
// node. It is bound there only if first is bound, too.
func TestAssumedPodNotBound(t *testing.T) {
	const moment = 200 * time.Millisecond
	selects := map[string]string{"type": "virtual-kubelet"}
	for _, tc := range []struct {
		name     string
		others   []*v1.Node
		selector map[string]string // of second
		// refuses: the API server refuses the binding of first. It takes delay. With early, the answer is there when
		// second is bound. With never, first is not bound meanwhile.
		refuses, early, never bool
		delay                 time.Duration
		refused               bool          // want the binding of second refused
		waits                 time.Duration // how long it takes at least
	}{
		{name: "bound", early: true},
		{name: "refused", early: true, refuses: true, refused: true},
		{name: "refused, and the system pool is next", others: []*v1.Node{systemNode("system").Obj()}, early: true, refuses: true, refused: true},
		{name: "being bound", delay: moment, waits: moment},
		{name: "being refused", delay: moment, refuses: true, refused: true, waits: moment},
		{name: "waits for a volume", never: true, waits: settleLimit},
		{name: "being refused, of no use to second", selector: selects, delay: moment, refuses: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newBindings(t, tc.others...)
			first, worse := h.binding("first", nil, "user"), "virtual"
			for _, n := range tc.others {
				worse = n.Name
			}
			second := h.binding("second", tc.selector, worse)
			h.slow("first", tc.delay, tc.refuses)
			if tc.early {
				first()
			}
			began := time.Now() // of what second waits for
			if !tc.early && !tc.never {
				go first()
				time.Sleep(moment / 4)
			}
			status := second()
			if refused := errors.Is(status.AsError(), errBetterNode); refused != tc.refused || status.IsSuccess() == tc.refused {
				t.Fatalf("status %v, want it refused: %t", status.AsError(), tc.refused)
			}
			if took := time.Since(began); took < tc.waits {
				t.Errorf("the binding took %v, want at least %v", took, tc.waits)
			}
			if tc.refused { // later cycles do not count on the pod that was not bound
				h.remove("first")
				h.remove("second")
				time.Sleep(2 * forgetLag)
				h.binding("third", nil, "user")()
				if status := h.binding("fourth", nil, worse)(); !status.IsSuccess() {
					t.Error(status.AsError())
				}
			}
		})
	}
}

// TestAssumedPodNeverBound: a pod whose binding fails each time does not keep another from ever being bound.
func TestAssumedPodNeverBound(t *testing.T) {
	h := newBindings(t)
	h.slow("first", 0, true)
	for n := 0; ; n++ {
		first, second := h.binding("first", nil, "user"), h.binding("second", nil, "virtual")
		first()
		status := second()
		if status.IsSuccess() != (n == maxRefusals) {
			t.Fatalf("after %d refusals: %v", n, status.AsError())
		}
		if status.IsSuccess() {
			return
		}
		h.remove("first")
		h.remove("second")
	}
}

// TestAssumedPodsBefore: which pods a cycle may have counted.
func TestAssumedPodsBefore(t *testing.T) {
	began := time.Now()
	a := newAssumedPods()
	for pod, failed := range map[types.UID]time.Time{"open": {}, "long ago": began.Add(-time.Second), "just now": began.Add(-forgetLag / 2), "since": began.Add(time.Second)} {
		a.add(pod, nil, 1)
		if !failed.IsZero() {
			a.remove(pod, failed)
		}
	}
	a.add("bound", nil, 1)
	a.remove("bound", time.Time{})
	if same, worse := len(a.before(nil, 1, began)), len(a.before(nil, 2, began)); same != 0 || worse != 3 {
		t.Errorf("cycles for the same rank may have counted %d, those for a worse rank %d; want 0 and 3", same, worse)
	}
	list := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "user", NodeSelector: &metav1.LabelSelector{}}, {Name: "system", NodeSelector: &metav1.LabelSelector{}}},
		Orders: []configv1.NamedOrder{{Name: "reversed", Pools: []string{"system"}}}}))(t)
	order, _ := list.OrderOf(map[string]string{pool.OrderAnnotation: "reversed"})
	if better := len(a.before(order, 0, began)); better != 3 {
		t.Errorf("a cycle of a pod whose order reverses the ranks may have counted %d, want 3", better)
	}
	if a.remove("open", began); len(a.pods) > 0 {
		t.Errorf("%d pods are left", len(a.pods))
	}
}

// bindings is a harness whose pods are bound as in the scheduler's binding cycle.
type bindings struct{ *harness }

// newBindings has a user node with one place, the virtual node, and the other nodes. The gate is open.
func newBindings(t *testing.T, others ...*v1.Node) bindings {
	h := bindings{newHarness(t, aks(t))}
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	user := userNode("user").Capacity(map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "1"}).Obj()
	for _, n := range append([]*v1.Node{user, virtualNode("virtual").Obj()}, others...) {
		h.sched.Cache.AddNode(h.logger, n)
		must.NoError(t, h.shared.Core().V1().Nodes().Informer().GetIndexer().Add(n))
	}
	return h
}

// binding runs a scheduling cycle, in which the pod must get the node, and returns the pod's binding cycle.
func (h bindings) binding(name string, selector map[string]string, want string) func() *fwk.Status {
	h.Helper()
	state, p, profile := framework.NewCycleState(), pod(name).UID(name).NodeSelector(selector).Obj(), h.sched.Profiles[ourProfile]
	if node, err := h.scheduleIn(state, p); err != nil || node != want {
		h.Fatalf("%s: node %q, %v; want %s", name, node, err, want)
	}
	if status := profile.RunReservePluginsReserve(h.ctx, state, p, want); !status.IsSuccess() {
		h.Fatal(status.AsError())
	}
	_, _ = h.client.CoreV1().Pods("default").Create(h.ctx, p, metav1.CreateOptions{})
	return func() *fwk.Status {
		status := profile.RunBindPlugins(h.ctx, state, p, want)
		if status.IsSuccess() {
			profile.RunPostBindPlugins(h.ctx, state, p, want)
		} else {
			profile.RunReservePluginsUnreserve(h.ctx, state, p, want)
		}
		return status
	}
}

// slow makes the API server take a while for the binding of the pod, and refuse it if refuses is set.
func (h bindings) slow(pod string, delay time.Duration, refuses bool) {
	h.plugin.binder = slowBinder{h.plugin.binder, pod, delay, refuses}
}

type slowBinder struct {
	typedcorev1.PodsGetter
	pod     string
	delay   time.Duration
	refuses bool
}

func (b slowBinder) Pods(namespace string) typedcorev1.PodInterface {
	return slowPods{b.PodsGetter.Pods(namespace), b}
}

type slowPods struct {
	typedcorev1.PodInterface
	binder slowBinder
}

func (p slowPods) Bind(ctx context.Context, binding *v1.Binding, options metav1.CreateOptions) error {
	if binding.Name == p.binder.pod {
		time.Sleep(p.binder.delay)
		if p.binder.refuses {
			return errors.New("the API server is starting")
		}
	}
	return p.PodInterface.Bind(ctx, binding, options)
}
