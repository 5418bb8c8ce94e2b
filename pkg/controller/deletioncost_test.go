package controller

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/must"
)

// TestWhoseCosts: pods of our scheduler get a cost. With deletionCosts: All, so do pods of other schedulers outside
// kube-system. A pod on a burst node gets no cost before it has started.
func TestWhoseCosts(t *testing.T) {
	const ours = "pool-priority-scheduler"
	yes := true
	for _, tc := range []struct {
		name, scheduler, namespace, node string
		status                           corev1.PodStatus
		want, wantOthers                 string // the cost, without and with deletionCosts: All
	}{
		{"ours", ours, "default", "vm", corev1.PodStatus{}, "1000", "1000"},
		{"ours in kube-system", ours, "kube-system", "vm", corev1.PodStatus{}, "1000", "1000"},
		{"another scheduler's", "default-scheduler", "default", "vm", corev1.PodStatus{}, "", "1000"},
		{"another scheduler's in kube-system", "default-scheduler", "kube-system", "vm", corev1.PodStatus{}, "", ""},
		{"another scheduler's on a burst node", "default-scheduler", "default", "virtual", corev1.PodStatus{Phase: corev1.PodRunning}, "", "-1000"},
		{"another scheduler's on a burst node, not started", "default-scheduler", "default", "virtual", corev1.PodStatus{Phase: corev1.PodPending}, "", ""},
		{"ours on a burst node, running", ours, "default", "virtual", corev1.PodStatus{Phase: corev1.PodRunning}, "-1000", "-1000"},
		{"ours on a burst node, not started", ours, "default", "virtual", corev1.PodStatus{Phase: corev1.PodPending}, "", ""},
		{"ours on a burst node, refused", ours, "default", "virtual", corev1.PodStatus{Phase: corev1.PodFailed, Reason: refusal.ReasonProviderFailed}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for others, want := range map[bool]string{false: tc.want, true: tc.wantOthers} {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: tc.namespace, UID: "p",
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}},
					Spec: corev1.PodSpec{NodeName: tc.node, SchedulerName: tc.scheduler}, Status: tc.status}
				c := fake.NewClientBuilder().WithScheme(scheme.Scheme).
					WithObjects(pod, node("vm", map[string]string{"mode": "user"}), node("virtual", map[string]string{"type": "virtual-kubelet"})).Build()
				r := &DeletionCost{Client: c, Pools: pools(t), SchedulerName: ours, Others: others, Recorder: record.NewFakeRecorder(10)}
				must.Do(t)(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}))
				got := &corev1.Pod{}
				must.NoError(t, c.Get(context.Background(), client.ObjectKeyFromObject(pod), got))
				if cost := got.Annotations[scalein.CostAnnotation]; cost != want {
					t.Errorf("with others: %t the cost is %q, want %q", others, cost, want)
				}
			}
		})
	}
}

// TestCostsOfOthersAreTakenBack: costs that were set with deletionCosts: All are removed from pods of other schedulers, but
// only once. Costs that the pods' owners set stay.
func TestCostsOfOthersAreTakenBack(t *testing.T) {
	yes := true
	marked := map[string]string{scalein.PoolAnnotation: "user", scalein.CostAnnotation: "1000", scalein.OwnCostAnnotation: "1000"}
	for _, tc := range []struct {
		name, namespace, node string
		others                bool
		phase                 corev1.PodPhase
		annotations           map[string]string
		want                  map[string]string
	}{
		{"ours", "default", "vm", false, corev1.PodRunning, marked, map[string]string{}},
		{"ours, and others are wanted", "default", "vm", true, corev1.PodRunning, marked, marked},
		{"ours, in kube-system", "kube-system", "vm", true, corev1.PodRunning, marked, map[string]string{}},
		{"its owner's", "default", "vm", false, corev1.PodRunning, map[string]string{scalein.CostAnnotation: "1000"}, map[string]string{scalein.CostAnnotation: "1000"}},
		{"changed by its owner", "default", "vm", false, corev1.PodRunning,
			map[string]string{scalein.CostAnnotation: "5", scalein.OwnCostAnnotation: "1000"}, map[string]string{scalein.CostAnnotation: "5"}},
		{"on a burst node, not started", "default", "virtual", false, corev1.PodPending, marked, marked},
		{"another installation's", "default", "other", false, corev1.PodRunning, marked, marked},
		{"another installation's, and others are wanted", "default", "other", true, corev1.PodRunning, marked, marked},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: tc.namespace, UID: "p", Annotations: tc.annotations,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}},
				Spec: corev1.PodSpec{NodeName: tc.node, SchedulerName: "default-scheduler"}, Status: corev1.PodStatus{Phase: tc.phase}}
			c := fake.NewClientBuilder().WithScheme(scheme.Scheme).
				WithObjects(pod.DeepCopy(), node("other", nil), node("vm", map[string]string{"mode": "user"}), node("virtual", map[string]string{"type": "virtual-kubelet"})).Build()
			r := &DeletionCost{Client: c, Pools: pools(t), SchedulerName: "pool-priority-scheduler", Others: tc.others, Recorder: record.NewFakeRecorder(10)}
			reconciled := func() *corev1.Pod {
				t.Helper()
				must.Do(t)(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}))
				got := &corev1.Pod{}
				must.NoError(t, c.Get(context.Background(), client.ObjectKeyFromObject(pod), got))
				return got
			}
			got := reconciled()
			if diff := cmp.Diff(tc.want, got.Annotations, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
			if len(tc.want) > 0 {
				return
			}
			got.Annotations = marked
			must.NoError(t, c.Update(context.Background(), got))
			if diff := cmp.Diff(marked, reconciled().Annotations); diff != "" {
				t.Errorf("what another writes again (-want,+got):\n%s", diff)
			}
		})
	}
}

// TestKarpenterSetsCosts: once Karpenter has set the cost of a pod, the controller corrects no cost on VMs, writes one
// event, and counts each pod once. In burst pools, it sets costs as before.
func TestKarpenterSetsCosts(t *testing.T) {
	yes := true
	pod := func(name, node, cost string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}},
			Spec: corev1.PodSpec{NodeName: node, SchedulerName: "default-scheduler"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if cost != "" {
			p.Annotations = map[string]string{scalein.CostAnnotation: cost, scalein.OwnCostAnnotation: cost}
		}
		return p
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		node("vm", map[string]string{"mode": "user", nodegroups.KarpenterNodePoolLabel: "a"}), node("virtual", map[string]string{"type": "virtual-kubelet"}),
		node("other", map[string]string{"mode": "user"}), pod("elsewhere", "other", "2000"), pod("early", "vm", ""), pod("users", "vm", ""), pod("ranked", "vm", "1000"), pod("cleared", "vm", "1000"), pod("new", "vm", ""), pod("old", "vm", "2000"), pod("burst", "virtual", "")).Build()
	recorder := record.NewFakeRecorder(10)
	r := &DeletionCost{Client: c, Pools: pools(t), SchedulerName: "pool-priority-scheduler", Others: true, Recorder: recorder}
	left := func() float64 { return count(t, costWrites, resultLeft) }
	get := func(name string) *corev1.Pod {
		t.Helper()
		p := &corev1.Pod{}
		must.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, p))
		return p
	}
	// sets writes an annotation as the manager, and passes the pod through the cache with the managed fields that the API
	// server writes. An empty value removes the annotation, and leaves no trace of the manager.
	sets := func(manager, name, key, value string) {
		t.Helper()
		p := get(name)
		delete(p.Annotations, key)
		if value != "" {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
		}
		must.NoError(t, c.Update(t.Context(), p))
		if value != "" {
			p.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{"f:phase":{}}}`)}, Subresource: "status"},
				{Manager: manager, Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{"f:` + key + `":{}}}}`)}},
			}
		}
		if cached := must.Get(r.Transform(p))(t).(*corev1.Pod); len(cached.ManagedFields) > 0 {
			t.Errorf("the cache keeps the managed fields of %s", name)
		}
	}
	reconciled := func(name, want string) {
		t.Helper()
		for range 2 {
			must.Do(t)(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "default", Name: name}}))
		}
		p := get(name)
		if cost := p.Annotations[scalein.CostAnnotation]; cost != want {
			t.Errorf("the cost of %s is %q, want %q", name, cost, want)
		}
		if p.Annotations[scalein.PoolAnnotation] == "" {
			t.Errorf("%s has no pool", name)
		}
	}
	before := left()
	sets("karpenter", "early", scalein.OwnCostAnnotation, "1000") // not the cost
	sets("karpenter", "early", scalein.OwnCostAnnotation, "")
	sets("kubectl-annotate", "users", scalein.CostAnnotation, "7")
	reconciled("early", "1000")
	reconciled("users", "7")
	if n := left() - before; n != 0 || len(recorder.Events) > 0 {
		t.Errorf("before Karpenter has set a cost, %v costs are left, and there are %d events", n, len(recorder.Events))
	}
	sets("karpenter", "cleared", scalein.CostAnnotation, "")
	sets("karpenter", "ranked", scalein.CostAnnotation, "-3")
	reconciled("ranked", "-3")
	reconciled("cleared", "")
	reconciled("new", "")
	reconciled("old", "2000") // the list of pools has changed
	reconciled("users", "7")
	reconciled("early", "1000")
	reconciled("burst", "-1000")
	reconciled("elsewhere", "1000") // its VM is not Karpenter's
	if n := left() - before; n != 4 {
		t.Errorf("%v costs are left to Karpenter, want those of ranked, cleared, new and old", n)
	}
	if e := <-recorder.Events; !strings.HasPrefix(e, "Warning DeletionCostsByKarpenter ") || len(recorder.Events) > 0 {
		t.Errorf("event %q and %d more, want one", e, len(recorder.Events))
	}
}
