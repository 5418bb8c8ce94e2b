package poolpriority

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/must"
)

// TestBind: the pod's place in the order of scale-in is in the Binding, and what the user set since the queue had the
// pod is kept.
func TestBind(t *testing.T) {
	const record = `{"reason":"Open","pools":{"system":"Backoff","user":"AtMaxSize"}}`
	for _, tc := range []struct {
		name, node string
		listed     map[string]string // the annotations of the pod in the lister
		off        bool
		want       map[string]string
	}{
		{name: "on a VM", node: "user", want: map[string]string{scalein.CostAnnotation: "2000", scalein.OwnCostAnnotation: "2000", scalein.PoolAnnotation: "user"}},
		{name: "on the virtual node", node: "virtual", want: map[string]string{scalein.CostAnnotation: "-1000", scalein.OwnCostAnnotation: "-1000", scalein.PoolAnnotation: "aci", gate.DecisionAnnotation: record}},
		{name: "with a cost of the user's", node: "virtual", listed: map[string]string{scalein.CostAnnotation: "5"}, want: map[string]string{scalein.PoolAnnotation: "aci", gate.DecisionAnnotation: record}},
		{name: "on a node that is gone", node: "gone"},
		{name: "switched off", node: "virtual", off: true, want: map[string]string{gate.DecisionAnnotation: record}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := aks(t)
			if tc.off {
				pluginArgs(cfg).ScaleIn.DeletionCosts = configv1.CostsNone
			}
			h := newHarness(t, cfg)
			factory := h.sched.Profiles[ourProfile].SharedInformerFactory().Core().V1()
			for _, n := range []*v1.Node{userNode("user").Obj(), virtualNode("virtual").Obj()} {
				must.NoError(t, factory.Nodes().Informer().GetIndexer().Add(n))
			}
			queued := pod("p").UID("p").Obj()
			listed := queued.DeepCopy()
			listed.Annotations = tc.listed
			must.NoError(t, factory.Pods().Informer().GetIndexer().Add(listed))
			must.Do(t)(h.sched.Profiles[ourProfile].ClientSet().CoreV1().Pods("default").Create(h.ctx, listed, metav1.CreateOptions{}))
			ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
			defer cancel()
			state := framework.NewCycleState()
			state.Write(stateKey, &cycle{nodes: []fwk.NodeInfo{}, worst: anyRank, decision: gate.Decision{
				Regular: []gate.Verdict{{Open: true, Reason: nodegroups.Reason{Code: "AtMaxSize"}}, {Open: true, Reason: nodegroups.Reason{Code: "Backoff"}}},
				Burst:   []gate.Verdict{{}, {}, {Open: true, Reason: nodegroups.Reason{Code: "Open"}}},
			}})
			if status := h.plugin.Bind(ctx, state, queued, tc.node); !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
			var binding *v1.Binding
			for _, action := range h.sched.Profiles[ourProfile].ClientSet().(*fake.Clientset).Actions() {
				if create, ok := action.(k8stesting.CreateAction); ok {
					binding, _ = create.GetObject().(*v1.Binding)
				}
			}
			if binding == nil || binding.Name != "p" || binding.UID != "p" || binding.Target.Name != tc.node {
				t.Fatalf("binding %+v", binding)
			}
			bound, err := time.Parse(time.RFC3339, binding.Annotations[refusal.BoundAtAnnotation])
			if onBurst := tc.node == "virtual"; onBurst != (err == nil) || onBurst && time.Since(bound).Abs() > time.Minute {
				t.Errorf("bound at %v (%v)", bound, err)
			}
			delete(binding.Annotations, refusal.BoundAtAnnotation)
			if diff := cmp.Diff(tc.want, binding.Annotations, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("annotations (-want,+got):\n%s", diff)
			}
		})
	}
}

// TestBindAfterTheLease: no binding is sent to the API server once the lease has run out.
func TestBindAfterTheLease(t *testing.T) {
	h := newHarness(t, aks(t))
	client := h.sched.Profiles[ourProfile].ClientSet().(*fake.Clientset)
	h.plugin.leadership = lease.NewLeadership()
	h.plugin.leadership.Extend(time.Now().Add(-time.Second))
	if status := h.plugin.Bind(h.ctx, nil, pod("p").Obj(), "user"); status.IsSuccess() || !errors.Is(status.AsError(), lease.ErrNotLeading) {
		t.Errorf("status %v, want %v", status, lease.ErrNotLeading)
	}
	for _, action := range client.Actions() { // informers list meanwhile
		if action.GetVerb() == "create" {
			t.Errorf("the API server was asked: %v", action)
		}
	}
}

// withClient is a framework with another client, made from config, and with other informers.
type withClient struct {
	framework.Framework
	config *rest.Config
	client kubernetes.Interface
	shared informers.SharedInformerFactory
}

func (f *withClient) KubeConfig() *rest.Config                               { return f.config }
func (f *withClient) ClientSet() kubernetes.Interface                        { return f.client }
func (f *withClient) SharedInformerFactory() informers.SharedInformerFactory { return f.shared }

// TestOwnLimiters: while status patches have exhausted the rate limiter of the scheduler's client, a pod is bound and
// the state is published without delay.
func TestOwnLimiters(t *testing.T) {
	var last atomic.Value // the method of the last request for the published state
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ofState := strings.HasSuffix(r.URL.Path, "/configmaps/pool-priority-status")
		if ofState {
			last.Store(r.Method)
		}
		if ofState && r.Method == http.MethodGet || r.URL.Query().Has("watch") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"1"}}`)) // any list, and any written object
	}))
	t.Cleanup(server.Close)
	cfg := aks(t)
	h := newHarness(t, cfg)
	config := &rest.Config{Host: server.URL, QPS: 0.1, Burst: 30}
	client := must.Get(kubernetes.NewForConfig(config))(t)
	leadership := lease.NewLeadership()
	handle := &withClient{h.sched.Profiles[ourProfile], config, client, informers.NewSharedInformerFactory(h.client, 0)}
	plugin := must.Get(NewFactory(leadership).New(h.ctx, pluginArgs(cfg), handle))(t)
	handle.shared.Start(h.ctx.Done())
	must.Eventually(h, "the gatekeeper has started", func() bool { return last.Load() == http.MethodGet })
	for range 60 {
		go func() {
			_, _ = client.CoreV1().Pods("default").Patch(h.ctx, "held", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
		}()
	}
	must.Eventually(h, "patches wait for the limiter", func() bool { return !client.CoreV1().RESTClient().GetRateLimiter().TryAccept() })
	leadership.Extend(time.Now().Add(time.Hour))
	ctx, cancel := context.WithTimeout(h.ctx, 2*time.Second)
	defer cancel()
	if status := plugin.(fwk.BindPlugin).Bind(ctx, framework.NewCycleState(), pod("p").Obj(), "user"); !status.IsSuccess() {
		t.Error("the binding waits behind the patches:", status.AsError())
	}
	must.Eventually(h, "the state is published", func() bool { return last.Load() == http.MethodPatch })
}
