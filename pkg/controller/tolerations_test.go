package controller

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

var (
	runs    = corev1.PodStatus{Phase: corev1.PodRunning}
	waiting = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}}
	refused = corev1.PodStatus{Phase: corev1.PodPending, Reason: refusal.ReasonProviderFailed, Message: "no"}
)

// TestTolerations: a pod that runs on a burst node gets the tolerations that it lacks for the node's taints and the
// gate taint, and no others.
func TestTolerations(t *testing.T) {
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	anyEffect := corev1.Toleration{Key: gate.Key, Operator: corev1.TolerationOpExists}
	value := corev1.Toleration{Key: azure.Key, Operator: corev1.TolerationOpEqual, Value: "azure", Effect: corev1.TaintEffectNoSchedule}
	wrong := corev1.Toleration{Key: azure.Key, Operator: corev1.TolerationOpEqual, Value: "aws", Effect: corev1.TaintEffectNoSchedule}
	advised := corev1.Toleration{Key: gate.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	list := func(tolerations ...corev1.Toleration) []corev1.Toleration { return tolerations }
	for _, tc := range []struct {
		name   string
		node   string
		status corev1.PodStatus
		have   []corev1.Toleration
		add    []corev1.Toleration
	}{
		{"pending", "", runs, list(own), nil},
		{"on a VM", "vm", runs, list(own), nil},
		{"on a burst node", "virtual", runs, list(own), list(azure, gate)},
		{"with what lint advises", "virtual", runs, list(advised, azure), nil},
		{"with one of them", "virtual", runs, list(azure), list(gate)},
		{"with all of them", "virtual", runs, list(gate, azure), nil},
		{"with one for everything", "virtual", runs, list(everything), nil},
		{"with one for any effect", "virtual", runs, list(anyEffect), list(azure)},
		{"with one for the taint's value", "virtual", runs, list(value), list(gate)},
		{"with one for another value", "virtual", runs, list(wrong), list(azure, gate)},
		{"on a burst node that has lost its taints: the gate taint comes back", "bare", runs, nil, list(gate)},
		{"on a burst node with a taint that the pool does not tolerate", "other", runs, nil, list(gate)},
		{"on a node that is gone", "gone", runs, list(own), nil},
		{"just bound", "virtual", corev1.PodStatus{Phase: corev1.PodPending}, nil, nil},
		{"with containers that wait", "virtual", waiting, nil, nil},
		{"refused", "virtual", refused, nil, nil},
		{"refused, and failed for it", "virtual", corev1.PodStatus{Phase: corev1.PodFailed, Reason: refusal.ReasonProviderFailed}, nil, nil},
		{"marked as refused while it ran", "virtual", corev1.PodStatus{Phase: corev1.PodRunning, Reason: refusal.ReasonProviderFailed}, nil, nil},
		{"ended", "virtual", corev1.PodStatus{Phase: corev1.PodSucceeded}, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			burst := map[string]string{"type": "virtual-kubelet"}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{NodeName: tc.node, Tolerations: tc.have}, Status: tc.status}
			patches := 0
			c := fake.NewClientBuilder().WithScheme(scheme.Scheme).
				WithObjects(pod, node("vm", map[string]string{"mode": "user"}), node("virtual", burst, provider, gateTaint), node("bare", burst), node("other", burst, other, another)).
				WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					patches++
					return c.Patch(ctx, o, p, opts...)
				}}).Build()
			r := &Tolerations{Client: c, Pools: pools(t)}
			for range 2 {
				must.Do(t)(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}))
			}
			got := &corev1.Pod{}
			must.NoError(t, c.Get(context.Background(), client.ObjectKeyFromObject(pod), got))
			if diff := cmp.Diff(append(tc.have, tc.add...), got.Spec.Tolerations); diff != "" {
				t.Errorf("tolerations (-want,+got):\n%s", diff)
			}
			if want := min(1, len(tc.add)); patches != want {
				t.Errorf("%d patches, want %d", patches, want)
			}
		})
	}
}

// TestNoTolerationsAdded: in a pool with addTolerations: false, pods keep their tolerations.
func TestNoTolerationsAdded(t *testing.T) {
	list := pools(t)
	for i := range list.Burst() {
		list.At(i).Burst.AddTolerations = new(bool)
	}
	r := &Tolerations{Pools: list}
	if missing := r.missing(&corev1.Pod{}, node("virtual", map[string]string{"type": "virtual-kubelet"}, provider)); len(missing) > 0 {
		t.Errorf("added %v", missing)
	}
}

// TestPodsOfATaintedNode: if the taints of a burst node change, the pods that run on it are reconciled.
func TestPodsOfATaintedNode(t *testing.T) {
	of := func(name, node string, status corev1.PodStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node}, Status: status}
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(of("runs", "virtual", runs), of("young", "virtual", waiting), of("elsewhere", "vm", runs)).Build()
	r := &Tolerations{Client: c, Pools: pools(t)}
	want := []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: "default", Name: "runs"}}}
	if diff := cmp.Diff(want, r.runningOn(context.Background(), node("virtual", nil))); diff != "" {
		t.Errorf("pods (-want,+got):\n%s", diff)
	}
}
