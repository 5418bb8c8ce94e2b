package controller

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// TestWhoseCosts: pods of our scheduler get a cost and, where that is wanted, those of others, but none of kube-system's and none on a burst
// node that has not started.
func TestWhoseCosts(t *testing.T) {
	const ours = "pool-priority-scheduler"
	yes := true
	for _, tc := range []struct {
		name, scheduler, namespace, node string
		status                           corev1.PodStatus
		want, wantOthers                 string // the cost, without and with others: true
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
				if _, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil {
					t.Fatal(err)
				}
				got := &corev1.Pod{}
				if err := c.Get(context.Background(), client.ObjectKeyFromObject(pod), got); err != nil {
					t.Fatal(err)
				}
				if cost := got.Annotations[scalein.CostAnnotation]; cost != want {
					t.Errorf("with others: %t the cost is %q, want %q", others, cost, want)
				}
			}
		})
	}
}
