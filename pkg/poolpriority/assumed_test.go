package poolpriority

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// TestAssumedPodNotBound: the pod first is assumed on the last place of the user pool, so the pod second gets a worse
// node. It is bound there only if first is bound, too.
func TestAssumedPodNotBound(t *testing.T) {
	for _, tc := range []struct {
		name   string
		others []*v1.Node
		// happens runs after the cycle of second, and before its binding.
		happens func(h *harness, first func() *fwk.Status)
		refused bool
	}{
		{name: "bound", happens: func(_ *harness, first func() *fwk.Status) { first() }},
		{name: "refused", happens: func(h *harness, first func() *fwk.Status) { h.refuse(nil); first() }, refused: true},
		{name: "refused, and the system pool is next", others: []*v1.Node{systemNode("system").Obj()}, happens: func(h *harness, first func() *fwk.Status) { h.refuse(nil); first() }, refused: true},
		{name: "being bound", happens: func(h *harness, first func() *fwk.Status) { go first() }},
		{name: "being refused", happens: func(h *harness, first func() *fwk.Status) {
			refuse := make(chan struct{})
			h.refuse(refuse)
			go first()
			time.AfterFunc(200*time.Millisecond, func() { close(refuse) })
		}, refused: true},
		{name: "waits for a volume", happens: func(*harness, func() *fwk.Status) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			full := userNode("user").Capacity(map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "1"}).Obj()
			for _, n := range append([]*v1.Node{full, virtualNode("virtual").Obj()}, tc.others...) {
				h.sched.Cache.AddNode(h.logger, n)
				must.NoError(t, h.shared.Core().V1().Nodes().Informer().GetIndexer().Add(n))
			}
			binding := func(name, want string) func() *fwk.Status {
				state, p := framework.NewCycleState(), pod(name).UID(name).Req(map[v1.ResourceName]string{"cpu": "1"}).Obj()
				must.Do(t)(h.client.CoreV1().Pods("default").Create(h.ctx, p, metav1.CreateOptions{}))
				if node, err := h.scheduleIn(state, p); err != nil || node != want {
					t.Fatalf("%s: node %q, %v; want %s", name, node, err, want)
				}
				profile := h.sched.Profiles[ourProfile]
				if status := profile.RunReservePluginsReserve(h.ctx, state, p, want); !status.IsSuccess() {
					t.Fatal(status.AsError())
				}
				return func() *fwk.Status { // as the scheduler's binding cycle
					status := profile.RunBindPlugins(h.ctx, state, p, want)
					if status.IsSuccess() {
						profile.RunPostBindPlugins(h.ctx, state, p, want)
					} else {
						profile.RunReservePluginsUnreserve(h.ctx, state, p, want)
					}
					return status
				}
			}
			first := binding("first", "user")
			worse := "virtual"
			if len(tc.others) > 0 {
				worse = tc.others[0].Name
			}
			second := binding("second", worse)
			tc.happens(h, first)
			status := second()
			if refused := strings.Contains(status.Message(), "better nodes were full"); refused != tc.refused || status.IsSuccess() == tc.refused {
				t.Fatalf("status %v, want it refused: %t", status.AsError(), tc.refused)
			}
			if left := len(h.plugin.assumed.before(10)); left > 0 && tc.name != "waits for a volume" {
				t.Errorf("%d pods are still assumed", left)
			}
			if tc.refused { // later cycles do not count on the pod that was not bound
				h.remove("first")
				h.remove("second")
				time.Sleep(2 * forgetLag)
				binding("third", "user")()
				if status := binding("fourth", worse)(); !status.IsSuccess() {
					t.Error(status.AsError())
				}
			}
		})
	}
}

// refuse makes the API server refuse the binding of the pod first, once the channel is closed.
func (h *harness) refuse(when <-chan struct{}) {
	h.client.PrependReactor("create", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create := action.(k8stesting.CreateAction)
		if binding, ok := create.GetObject().(*v1.Binding); !ok || binding.Name != "first" {
			return false, nil, nil
		}
		if when != nil {
			<-when
		}
		return true, nil, errors.New("the API server is starting")
	})
}
