package controller

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/must"
)

var (
	other     = corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule}
	gateTaint = corev1.Taint{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoSchedule}
	another   = corev1.Taint{Key: configv1.GateTaintKey, Value: "another", Effect: corev1.TaintEffectNoSchedule}
	soft      = corev1.Taint{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectPreferNoSchedule}
	evicting  = corev1.Taint{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoExecute}

	provider = corev1.Taint{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: corev1.TaintEffectNoSchedule}

	azure = corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	gate  = corev1.Toleration{Key: configv1.GateTaintKey, Operator: corev1.TolerationOpEqual, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoSchedule}
	own   = corev1.Toleration{Key: "own", Operator: corev1.TolerationOpExists}
)

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func pools(t *testing.T) pool.List {
	t.Helper()
	list, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("mode", "user")},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{Tolerations: []corev1.Toleration{azure}}},
	}})
	must.NoError(t, err)
	return list
}

func node(name string, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
}

func TestGateTaint(t *testing.T) {
	burst, user := map[string]string{"type": "virtual-kubelet"}, map[string]string{"mode": "user"}
	for _, tc := range []struct {
		name   string
		labels map[string]string
		have   []corev1.Taint
		off    bool
		want   []corev1.Taint
	}{
		{"a burst node without it", burst, []corev1.Taint{other}, false, []corev1.Taint{other, gateTaint}},
		{"a burst node with it", burst, []corev1.Taint{gateTaint, other}, false, []corev1.Taint{gateTaint, other}},
		{"a regular node", user, []corev1.Taint{other}, false, []corev1.Taint{other}},
		{"a node that left the burst pool", user, []corev1.Taint{gateTaint, other}, false, []corev1.Taint{other}},
		{"a node in no pool", nil, []corev1.Taint{gateTaint}, false, nil},
		{"a burst node with another installation's: it has no room for ours", burst, []corev1.Taint{another, soft}, false, []corev1.Taint{another}},
		{"a regular node with another installation's", user, []corev1.Taint{another}, false, []corev1.Taint{another}},
		{"switched off, with another installation's", burst, []corev1.Taint{another}, true, []corev1.Taint{another}},
		{"switched off", burst, []corev1.Taint{other, gateTaint}, true, []corev1.Taint{other}},
		{"a burst node with an effect that hides it from nobody", burst, []corev1.Taint{soft, other}, false, []corev1.Taint{other, gateTaint}},
		{"a burst node with an effect that evicts pods", burst, []corev1.Taint{evicting}, false, []corev1.Taint{gateTaint}},
		{"a burst node with several effects", burst, []corev1.Taint{soft, gateTaint, other, evicting}, false, []corev1.Taint{gateTaint, other}},
		{"a regular node with another effect", user, []corev1.Taint{soft, other}, false, []corev1.Taint{other}},
		{"switched off, with several effects", burst, []corev1.Taint{soft, gateTaint, evicting}, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := nodeClient(func(bool) error { return nil }, node("n", tc.labels, tc.have...))
			r := &GateTaint{Client: c, Pools: pools(t), Off: tc.off, Clock: clock.RealClock{}}
			for range 2 { // the second time there is nothing to do
				must.Do(t)(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "n"}}))
			}
			got := &corev1.Node{}
			must.NoError(t, c.Get(context.Background(), client.ObjectKey{Name: "n"}, got))
			if diff := cmp.Diff(tc.want, got.Spec.Taints); diff != "" {
				t.Errorf("taints (-want,+got):\n%s", diff)
			}
			if !r.InLine(got) || cmp.Equal(tc.have, tc.want) != r.InLine(node("n", tc.labels, tc.have...)) {
				t.Error("InLine() says otherwise")
			}
		})
	}
}

func TestDeletionCost(t *testing.T) {
	yes := true
	owned := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}
	for _, tc := range []struct {
		name   string
		node   string
		owners []metav1.OwnerReference
		have   map[string]string
		want   map[string]string
		events int
	}{
		{"without a cost, on a VM", "vm", owned, nil, map[string]string{scalein.CostAnnotation: "1000", scalein.OwnCostAnnotation: "1000", scalein.PoolAnnotation: "user"}, 0},
		{"without a cost, on a burst node", "virtual", owned, nil, map[string]string{scalein.CostAnnotation: "-1000", scalein.OwnCostAnnotation: "-1000", scalein.PoolAnnotation: "aci"}, 0},
		{"of no ReplicaSet", "vm", nil, nil, nil, 0},
		{"in no pool", "unlisted", owned, nil, nil, 0},
		{"its pool left the list", "unlisted", owned, map[string]string{scalein.CostAnnotation: "1000", scalein.OwnCostAnnotation: "1000", scalein.PoolAnnotation: "user"},
			map[string]string{scalein.CostAnnotation: "500", scalein.OwnCostAnnotation: "500"}, 0},
		{"pending", "", owned, nil, nil, 0},
		{"somebody changed it", "vm", owned, map[string]string{scalein.CostAnnotation: "5", scalein.OwnCostAnnotation: "1000", scalein.PoolAnnotation: "user"},
			map[string]string{scalein.CostAnnotation: "5", scalein.OwnCostAnnotation: "1000", scalein.PoolAnnotation: "user"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "p", Annotations: tc.have, OwnerReferences: tc.owners}, Spec: corev1.PodSpec{NodeName: tc.node},
				Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pod, node("vm", map[string]string{"mode": "user"}),
				node("virtual", map[string]string{"type": "virtual-kubelet"}), node("unlisted", nil)).Build()
			recorder := record.NewFakeRecorder(10)
			r := &DeletionCost{Client: c, Pools: pools(t), Recorder: recorder}
			var versions []string
			got := &corev1.Pod{}
			for range 2 { // the second time there is nothing to do, and nothing to say
				must.Do(t)(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}))
				must.NoError(t, c.Get(context.Background(), client.ObjectKeyFromObject(pod), got))
				versions = append(versions, got.ResourceVersion)
			}
			if diff := cmp.Diff(tc.want, got.Annotations); diff != "" {
				t.Errorf("annotations (-want,+got):\n%s", diff)
			}
			if versions[0] != versions[1] {
				t.Error("written twice")
			}
			if n := len(recorder.Events); n != tc.events {
				t.Errorf("%d events, want %d", n, tc.events)
			}
		})
	}
}

// TestCostThatIsRewritten: if another component keeps changing a cost, the controller leaves the cost alone and writes
// one event.
func TestCostThatIsRewritten(t *testing.T) {
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "p",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}}, Spec: corev1.PodSpec{NodeName: "vm"}}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pod, node("vm", map[string]string{"mode": "user"})).Build()
	recorder := record.NewFakeRecorder(100)
	r := &DeletionCost{Client: c, Pools: pools(t), Recorder: recorder}
	for i := range 50 {
		must.Do(t)(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}))
		got := &corev1.Pod{}
		must.NoError(t, c.Get(context.Background(), client.ObjectKeyFromObject(pod), got))
		if cost := got.Annotations[scalein.CostAnnotation]; i > 0 && cost != strconv.Itoa(i) {
			t.Fatalf("the cost that somebody set to %d is %s", i, cost)
		}
		got.Annotations[scalein.CostAnnotation] = strconv.Itoa(i + 1)
		must.NoError(t, c.Update(context.Background(), got))
	}
	if n := len(recorder.Events); n != 1 {
		t.Errorf("%d events, want one", n)
	}
}

// TestConflicts: a conflict is no error, and the object is reconciled again. Any other failure is an error, unless the
// object is gone. (TestGateTaintDenied tests a gate taint that may not be set.)
func TestConflicts(t *testing.T) {
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "o", Namespace: "default", UID: "p",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}}, Spec: corev1.PodSpec{NodeName: "o"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for _, tc := range []struct {
		name      string
		answer    error
		again, ok bool
	}{
		{"conflict", apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "o", errors.New("changed")), true, true},
		{"gone", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "o"), false, true},
		{"failed", apierrors.NewInternalError(errors.New("no")), false, false},
	} {
		patches := 0
		c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pod, node("o", map[string]string{"type": "virtual-kubelet"})).
			WithInterceptorFuncs(interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				patches++
				return tc.answer
			}}).Build()
		for name, r := range map[string]reconcile.Reconciler{
			"gate taint":    &GateTaint{Client: c, Pools: pools(t), Clock: clock.RealClock{}},
			"tolerations":   &Tolerations{Client: c, Pools: pools(t)},
			"deletion cost": &DeletionCost{Client: c, Pools: pools(t), Recorder: record.NewFakeRecorder(10)},
		} {
			patches = 0
			key := client.ObjectKey{Namespace: "default", Name: "o"}
			if name == "gate taint" {
				key.Namespace = ""
			}
			result, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: key})
			if patches != 1 || (result.RequeueAfter > 0) != tc.again || (err == nil) != tc.ok {
				t.Errorf("%s, %s: %d patch(es), %+v, %v, want one, again: %t, no error: %t", name, tc.name, patches, result, err, tc.again, tc.ok)
			}
		}
	}
}
