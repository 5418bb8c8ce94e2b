package preflight

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

const azure = "virtual-kubelet.io/provider"

func pools(t *testing.T) pool.List {
	t.Helper()
	list, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "user"}}},
		{Name: "aci", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "virtual-kubelet"}}, Burst: &configv1.Burst{}},
	}})
	must.NoError(t, err)
	return list
}

var nodes = []corev1.Node{
	{ObjectMeta: metav1.ObjectMeta{Name: "vm", Labels: map[string]string{"mode": "user"}}},
	{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: azure, Value: "azure", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, // it will be ready again
		{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoSchedule},
	}}},
}

func tolerates(keys ...string) corev1.PodSpec {
	var spec corev1.PodSpec
	for _, key := range keys {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return spec
}

func TestCheck(t *testing.T) {
	pinned := tolerates(azure)
	pinned.NodeSelector = map[string]string{"type": "virtual-kubelet"}
	elsewhere := tolerates(azure)
	elsewhere.NodeSelector = map[string]string{"mode": "user"}
	ready := tolerates(azure, configv1.GateTaintKey)
	ours := tolerates(azure)
	ours.SchedulerName = "pool-priority-scheduler"
	everything := tolerates("")
	oursEverything := tolerates("")
	oursEverything.SchedulerName = "pool-priority-scheduler"
	evictionOnly := corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}}
	for _, tc := range []struct {
		name        string
		kind        string
		spec        corev1.PodSpec
		onBurst     int
		lockedOut   string // part of the message; "": no finding
		toleratesAl bool
	}{
		{name: "plain", spec: corev1.PodSpec{}},
		{name: "pinned to the virtual node", spec: pinned, lockedOut: "can run on burst nodes now"},
		{name: "may run anywhere", spec: tolerates(azure), lockedOut: "can run on burst nodes now"},
		{name: "tolerates the virtual node and selects another", spec: elsewhere},
		{name: "tolerates the gate taint", spec: ready},
		{name: "ours", spec: ours},
		{name: "has pods there, whatever it tolerates now", spec: corev1.PodSpec{}, onBurst: 2, lockedOut: "has 2 pod(s) on burst nodes"},
		{name: "tolerates everything", spec: everything, toleratesAl: true},
		{name: "ours, and tolerates everything", spec: oursEverything, toleratesAl: true},
		{name: "a DaemonSet that tolerates everything", kind: "DaemonSet", spec: everything},
		{name: "tolerates every eviction", spec: evictionOnly},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := Workload{Kind: "Deployment", Namespace: "default", Name: "w", OnBurst: tc.onBurst, Template: corev1.PodTemplateSpec{Spec: tc.spec}}
			if tc.kind != "" {
				w.Kind = tc.kind
			}
			r := Check(pools(t), []string{"pool-priority-scheduler"}, nodes, []Workload{w}, func(*corev1.Pod) gate.Lost { return nil })
			if (len(r.LockedOut) == 1) != (tc.lockedOut != "") || len(r.LockedOut) == 1 && !strings.Contains(r.LockedOut[0].Message, tc.lockedOut) {
				t.Errorf("locked out: %v, want %q", r.LockedOut, tc.lockedOut)
			}
			if (len(r.TolerateAll) == 1) != tc.toleratesAl {
				t.Errorf("tolerate all: %v, want %v", r.TolerateAll, tc.toleratesAl)
			}
			if r.Clean() != (tc.lockedOut == "" && !tc.toleratesAl) || !slices.Equal(r.BurstNodes, []string{"virtual"}) {
				t.Errorf("clean: %v, burst nodes %v", r.Clean(), r.BurstNodes)
			}
		})
	}
}

// TestLosing: the report counts the pods of this scheduler that lose protections in a burst pool. They are no conflict
// with the gate taint.
func TestLosing(t *testing.T) {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	hard := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hard", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	protections := must.Get(Protections(t.Context(), fake.NewClientBuilder().WithObjects(policy, hard).Build()))(t)
	of := func(namespace, app, scheduler string) Workload {
		return Workload{Kind: "Deployment", Namespace: namespace, Name: app, Pods: 3, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{SchedulerName: scheduler}}}
	}
	const ours = "pool-priority-scheduler"
	r := Check(pools(t), []string{ours}, nodes, []Workload{of("shop", "web", ours), of("shop", "db", ours), of("shop", "web", ""), of("hard", "web", ours), of("other", "web", ours)}, protections)
	var got []string
	for _, f := range r.Losing {
		got = append(got, f.Workload.String()+" "+f.Message)
	}
	want := []string{"Deployment shop/web in pool aci, its 3 pod(s) run without the NetworkPolicy web", "Deployment hard/web in pool aci, its 3 pod(s) run without the settings that restricted Pod Security requires"}
	if diff := cmp.Diff(want, got); diff != "" || !r.Clean() {
		t.Errorf("clean %v, (-want,+got):\n%s", r.Clean(), diff)
	}
}

// TestWorkloads: each workload is listed once, with the number of its pods on burst nodes. Pods of its ReplicaSets and
// Jobs count.
func TestWorkloads(t *testing.T) {
	versions := map[string]string{"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "CronJob": "batch/v1", "Job": "batch/v1", "Rollout": "argoproj.io/v1alpha1"}
	meta := func(name string, owner ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "default", Name: name}
		if len(owner) == 2 {
			yes := true
			m.OwnerReferences = []metav1.OwnerReference{{Kind: owner[0], Name: owner[1], Controller: &yes, APIVersion: versions[owner[0]], UID: "u"}}
		}
		return m
	}
	pod := func(m metav1.ObjectMeta, node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		&appsv1.Deployment{ObjectMeta: meta("web")}, &appsv1.ReplicaSet{ObjectMeta: meta("web-1", "Deployment", "web")},
		pod(meta("web-1-a", "ReplicaSet", "web-1"), "virtual", corev1.PodRunning), pod(meta("web-1-b", "ReplicaSet", "web-1"), "vm", corev1.PodRunning),
		&appsv1.ReplicaSet{ObjectMeta: meta("lone")}, pod(meta("lone-a", "ReplicaSet", "lone"), "virtual", corev1.PodPending),
		&batchv1.CronJob{ObjectMeta: meta("nightly")}, &batchv1.Job{ObjectMeta: meta("nightly-1", "CronJob", "nightly")},
		pod(meta("nightly-1-a", "Job", "nightly-1"), "virtual", corev1.PodSucceeded), pod(meta("nightly-1-b", "Job", "nightly-1"), "virtual", corev1.PodRunning),
		&appsv1.StatefulSet{ObjectMeta: meta("db")}, &appsv1.DaemonSet{ObjectMeta: meta("agent")},
		pod(meta("bare"), "virtual", corev1.PodRunning),
		pod(meta("custom-a", "Rollout", "custom"), "virtual", corev1.PodRunning),
		&appsv1.ReplicaSet{ObjectMeta: meta("rollout-1", "Rollout", "rollout")},
	).Build()
	found := must.Get(Workloads(context.Background(), c, pools(t), nodes))(t)
	var got []string
	for i := range found {
		got = append(got, found[i].String()+" "+strings.Repeat("x", found[i].OnBurst))
	}
	slices.Sort(got)
	want := []string{
		"CronJob default/nightly x", "DaemonSet default/agent ", "Deployment default/web x", "Pod default/bare x", "Pod default/custom-a x",
		"ReplicaSet default/lone x", "ReplicaSet default/rollout-1 ", "StatefulSet default/db ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
