package pool

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"

	"poolpriority.dev/scheduler/test/must"
)

// TestLimits: the limits are the same, whichever way they are written.
func TestLimits(t *testing.T) {
	cpu, memory := ptr.To(resource.MustParse("100")), ptr.To(resource.MustParse("400Gi"))
	for _, tc := range []struct {
		name  string
		burst configv1.Burst
		want  Limits
	}{
		{"none", configv1.Burst{}, Limits{}},
		{"of pods", configv1.Burst{Limits: &configv1.BurstLimits{Pods: 10}}, Limits{Pods: 10}},
		{"all", configv1.Burst{Limits: &configv1.BurstLimits{Pods: 10, CPU: cpu, Memory: memory}}, Limits{10, 100_000, 400 << 30}},
	} {
		list := must.Get(ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: selector("type", "virtual-kubelet"), Burst: &tc.burst}}}))(t)
		if got := list.At(0).Limits(); got != tc.want || !list.At(0).OnACI() {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
		if got := list.At(0).PerNamespace(); got != (Limits{}) || list.LimitsNamespaces() {
			t.Errorf("%s: %+v for each namespace, want no limits", tc.name, got)
		}
		list = must.Get(ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: selector("type", "virtual-kubelet"), Burst: &configv1.Burst{PerNamespace: tc.burst.Limits}}}}))(t)
		if got := list.At(0).PerNamespace(); got != tc.want || list.At(0).Limits() != (Limits{}) || list.LimitsNamespaces() != (tc.burst.Limits != nil) {
			t.Errorf("%s: %+v for each namespace, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestNotSelecting(t *testing.T) {
	list, err := ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: selector("team", "user")},
		{Name: "all", NodeSelector: selector("team", "all"), Burst: &configv1.Burst{}},
		{Name: "a", NodeSelector: selector("team", "a"), Burst: &configv1.Burst{NamespaceSelector: selector("team", "a")}},
		{Name: "b", NodeSelector: selector("team", "b"), Burst: &configv1.Burst{NamespaceSelector: selector("team", "b")}},
	}})
	if err != nil || !list.SelectsNamespaces() {
		t.Fatalf("ListOf(&configv1.PoolPriorityArgs{Pools: }) = %v, %v", list, err)
	}
	for _, tc := range []struct {
		name      string
		namespace *corev1.Namespace
		want      [4]bool
	}{
		{"of team a", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "a"}}}, [4]bool{false, false, false, true}},
		{"of no team", &corev1.Namespace{}, [4]bool{false, false, true, true}},
		{"not known", nil, [4]bool{false, false, true, true}},
	} {
		if got := [4]bool(list.NotSelecting(tc.namespace)); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	tenants := must.Get(ListOf(&configv1.PoolPriorityArgs{Tenants: true, Pools: []configv1.Pool{
		{Name: "user", NodeSelector: selector("team", "user")},
		{Name: "all", NodeSelector: selector("team", "all"), Burst: &configv1.Burst{}},
		{Name: "a", NodeSelector: selector("team", "a"), Burst: &configv1.Burst{NamespaceSelector: selector("team", "a")}},
	}}))(t)
	for labels, want := range map[string][3]bool{
		"poolpriority.dev/burst=Allowed": {false, false, true}, "poolpriority.dev/burst-nodes=Allowed": {false, false, true},
		"poolpriority.dev/burst=Never": {false, true, true}, "poolpriority.dev/network-policy-loss=Allowed": {false, true, true}, "team=a": {false, true, false},
	} {
		key, value, _ := strings.Cut(labels, "=")
		if got := [3]bool(tenants.NotSelecting(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{key: value}}})); got != want {
			t.Errorf("with tenants, %s: %v, want %v", labels, got, want)
		}
	}
	if got := [3]bool(tenants.NotSelecting(nil)); got != [3]bool{false, true, true} || !tenants.SelectsNamespaces() {
		t.Errorf("with tenants, not known: %v", got)
	}
	all, err := ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "all", NodeSelector: selector("team", "all"), Burst: &configv1.Burst{}}}})
	if err != nil || all.NotSelecting(nil) != nil {
		t.Errorf("where every pool is for all: %v, %v", all.NotSelecting(nil), err)
	}
	if _, err := ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "bad", NodeSelector: selector("team", "a"), Burst: &configv1.Burst{NamespaceSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}}}}}); err == nil {
		t.Error("a selector that does not parse is no error")
	}
}
