package gatekeeper

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/must"
)

// TestNominatedNodeIsDeleted: if the node to which a held pod is nominated is deleted, the pod is requeued, without
// another event. Autoscalers count as ignoring the pod until its nomination is cleared.
func TestNominatedNodeIsDeleted(t *testing.T) {
	node := burstNode("vm")
	node.Labels = map[string]string{"agentpool": "userpool"}
	w := newWorldWith(t, func(*configv1.PoolPriorityArgs) {}, node)
	var requeued atomic.Int32
	w.config.Activate = func(_ klog.Logger, pods map[string]*v1.Pod) {
		if pods["default/p"] != nil {
			requeued.Add(1)
		}
	}
	w.setStatus(1, 1)
	w.run()
	w.Lead()
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	p.Status.NominatedNodeName = "vm"
	w.addPod(p)
	w.verdict(p, gate.ReasonCanGrow.Code)
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	w.Gatekeeper.Failed(p, true)
	w.Hold(klog.Background(), p, &d, nil, false)
	passes := func(d time.Duration) {
		began := w.clock.Now()
		w.eventually(func() string {
			if w.clock.Since(began) < d {
				return "the clock stands still"
			}
			return ""
		})
	}
	passes(5 * time.Second) // the pod may be requeued once because the scheduler has just started
	before := requeued.Load()
	passes(30 * time.Second)
	if n := requeued.Load() - before; n > 0 {
		t.Errorf("the pod was requeued %d times while its node existed", n)
	}
	must.NoError(t, w.client.CoreV1().Nodes().Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	deleted := w.clock.Now()
	w.eventually(func() string {
		if requeued.Load() == before {
			return "the pod was not requeued"
		}
		return ""
	})
	if took := w.clock.Since(deleted); took > published.Heartbeat/2 { // the clock is faster than the informers
		t.Errorf("the pod was requeued after %v", took)
	}
	if since := w.held.Since(p, w.clock.Now()); since.Ignored.Before(deleted) {
		t.Errorf("the pod has been looked at since %v, and its nomination stands", since.Ignored)
	}
	p = p.DeepCopy()
	p.Status.NominatedNodeName = ""
	w.update(p)
	cleared := w.clock.Now()
	w.eventually(func() string {
		if since := w.held.Since(p, w.clock.Now()).Ignored; since.Before(deleted) || w.clock.Since(cleared) < time.Second || since.After(w.clock.Now().Add(-time.Second)) {
			return fmt.Sprintf("cleared at %v, looked at since %v", cleared, since)
		}
		return ""
	})
}

// TestTenants: with tenants, a pod that a NetworkPolicy selects is held. It is requeued when the NetworkPolicy is
// deleted, when its labels change, and when the namespace allows the loss. So is a pod whose namespace is not selected,
// when it is.
func TestTenants(t *testing.T) {
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"poolpriority.dev/burst": "Allowed"}}}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny", Namespace: "default"}, Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) { args.Tenants = true }, namespace, policy)
	w.setStatus(3, 3)
	w.run("namespaces", "networkpolicies")
	w.Lead()
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	p.Labels = map[string]string{"app": "web"}
	w.addPod(p)
	policies := w.client.NetworkingV1().NetworkPolicies("default")
	label := func(name, value string) func() {
		return func() {
			namespace.Labels[name] = value
			must.Do(t)(w.client.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}))
		}
	}
	for _, tc := range []struct {
		name, reason string
		allow, undo  func()
	}{
		{"the policy is deleted", "NetworkPolicyLost", func() { must.NoError(t, policies.Delete(t.Context(), "deny", metav1.DeleteOptions{})) },
			func() { must.Do(t)(policies.Create(t.Context(), policy, metav1.CreateOptions{})) }},
		{"the pod's labels change", "NetworkPolicyLost", func() { p = p.DeepCopy(); p.Labels["app"] = "other"; w.update(p) },
			func() { p = p.DeepCopy(); p.Labels["app"] = "web"; w.update(p) }},
		{"the namespace allows the loss", "NetworkPolicyLost", label("poolpriority.dev/network-policy-loss", "Allowed"), label("poolpriority.dev/burst", "Never")},
		{"the namespace is selected", "NamespaceNotSelected", label("poolpriority.dev/burst", "Allowed"), func() {}},
	} {
		w.verdict(p, tc.reason)
		w.eventually(func() string {
			if current := w.current(p); current == nil || current.Labels["app"] != p.Labels["app"] {
				return "the informer has an older pod"
			}
			return ""
		})
		before := fmt.Sprint(w.SchedulerSignature(p))
		d := w.Decide(p, Snapshot{}, gate.Wait{})
		w.Hold(klog.Background(), p, &d, nil, false)
		held := w.clock.Now()
		w.eventually(func() string { // the next sync without an event comes after published.Heartbeat
			if w.clock.Since(held) < 15*time.Second {
				return "the clock stands still"
			}
			return ""
		})
		if w.wasActivated("p") {
			t.Errorf("before %s, the pod was requeued", tc.name)
		}
		tc.allow()
		allowed := w.clock.Now()
		w.activates("p", "the pod was not requeued when "+tc.name)
		if took := w.clock.Since(allowed); took > published.Heartbeat*2/3 {
			t.Errorf("the pod was requeued %v after %s", took, tc.name)
		}
		if before == fmt.Sprint(w.SchedulerSignature(p)) {
			t.Errorf("%s: the pod's signature is that of a pod that may not burst", tc.name)
		}
		tc.undo()
	}
}

// TestUnreadPolicies: without the right to read NetworkPolicies, the gatekeeper runs. With tenants, it holds all pods,
// unless they may lose their NetworkPolicies.
func TestUnreadPolicies(t *testing.T) {
	for _, tc := range []struct {
		name    string
		tenants bool
		allow   []configv1.Loss
		want    string
	}{
		{"without tenants", false, nil, "Open"},
		{"with tenants", true, nil, "NetworkPolicyLost"},
		{"with tenants, and the pool allows the loss", true, []configv1.Loss{configv1.LossNetworkPolicy}, "Open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"poolpriority.dev/burst": "Allowed"}}})
			var tries atomic.Int32
			client.PrependReactor("list", "networkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
				tries.Add(1)
				return true, nil, apierrors.NewForbidden(networkingv1.Resource("networkpolicies"), "", errors.New("no right"))
			})
			w := newWorldOf(t, client, func(args *configv1.PoolPriorityArgs) {
				args.Tenants, args.Pools[2].Burst.Allow = tc.tenants, tc.allow
			}, nil)
			w.setStatus(3, 3)
			w.run("namespaces")
			w.verdict(pod("p"), tc.want)
			if v := w.Decide(pod("p"), Snapshot{}, gate.Wait{}).Burst[2]; tc.want != "Open" && !strings.Contains(v.Reason.Detail, "cannot read") {
				t.Errorf("the detail is %q", v.Reason.Detail)
			}
			w.eventually(func() string {
				if tries.Load() == 0 {
					return "the NetworkPolicies were not listed"
				}
				return ""
			})
		})
	}
}

// TestHeirOfJob: a Job's pod has a finalizer, so that it is first marked as deleted. Its replacement continues its waiting.
func TestHeirOfJob(t *testing.T) {
	w := newWorld(t)
	old, replacement := ofJob(pod("a"), "sums"), ofJob(pod("b"), "sums")
	for _, p := range []*v1.Pod{old, replacement} {
		must.NoError(t, w.config.Informers.Core().V1().Pods().Informer().GetIndexer().Add(p))
	}
	w.Gatekeeper.Failed(old, true)
	w.held.Add(old, "", &gate.Decision{Burst: make([]gate.Verdict, 3)}, nil, w.clock.Now())
	w.clock.Step(time.Minute)
	now, marked := metav1.Now(), old.DeepCopy()
	marked.DeletionTimestamp = &now
	w.Gatekeeper.update(old, marked)
	w.deleted(marked)
	replacement.CreationTimestamp = metav1.NewTime(w.clock.Now())
	w.Gatekeeper.Failed(replacement, true)
	if got := w.held.Since(replacement, w.clock.Now()).Inherited; got != time.Minute {
		t.Errorf("it continues %v", got)
	}
}
