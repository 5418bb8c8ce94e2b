package scalein

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

func pools(t *testing.T) pool.List {
	t.Helper()
	selecting := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"pool": value}}
	}
	list, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: selecting("user")}, {Name: "system", NodeSelector: selecting("system")},
		{Name: "aci", NodeSelector: selecting("aci"), Burst: &configv1.Burst{}}, {Name: "aci-2", NodeSelector: selecting("aci-2"), Burst: &configv1.Burst{}},
	}, Orders: []configv1.NamedOrder{{Name: "system-first", Pools: []string{"system"}}}})
	must.NoError(t, err)
	return list
}

func labelled(labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
}

// TestCost: the cases are in the order in which a ReplicaSet deletes the pods.
func TestCost(t *testing.T) {
	for _, tc := range []struct {
		pool string
		want int
	}{{"aci-2", -2000}, {"aci", -1000}, {"virtual-kubelet", -1000}, {"in no pool", 500}, {"system", 1000}, {"user", 2000}} {
		if got := Cost(pools(t), labelled(map[string]string{"pool": tc.pool, "type": tc.pool}), nil); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.pool, got, tc.want)
		}
		want := tc.want
		if want >= 1000 {
			want = 3000 - want
		}
		if got := Cost(pools(t), labelled(map[string]string{"pool": tc.pool, "type": tc.pool}), map[string]string{pool.OrderAnnotation: "system-first"}); got != want {
			t.Errorf("%s with another order: %d, want %d", tc.pool, got, want)
		}
	}
}

func TestAnnotations(t *testing.T) {
	ours := func(cost, pool string) map[string]string {
		return map[string]string{PoolAnnotation: pool, CostAnnotation: cost, OwnCostAnnotation: cost}
	}
	with := func(m map[string]string, key, value string) map[string]string {
		m[key] = value
		return m
	}
	without := func(m map[string]string, key string) map[string]string {
		delete(m, key)
		return m
	}
	for _, tc := range []struct {
		name, pool string
		current    map[string]string
		want       map[string]string
		foreign    bool
	}{
		{name: "on a VM", pool: "user", want: ours("2000", "user")},
		{name: "on a burst node", pool: "aci", current: map[string]string{"other": "x"}, want: ours("-1000", "aci")},
		{name: "in no pool", pool: "none", want: without(ours("500", ""), PoolAnnotation)},
		{name: "its pool left the list", pool: "none", current: ours("2000", "user"), want: map[string]string{PoolAnnotation: "", CostAnnotation: "500", OwnCostAnnotation: "500"}},
		{name: "in line", pool: "user", current: ours("2000", "user"), want: map[string]string{}},
		{name: "the list was edited", pool: "system", current: ours("2000", "system"), want: map[string]string{CostAnnotation: "1000", OwnCostAnnotation: "1000"}},
		{name: "the user set a cost", pool: "user", current: map[string]string{CostAnnotation: "7"}, want: map[string]string{PoolAnnotation: "user"}},
		{name: "the user set a cost of nothing", pool: "user", current: map[string]string{CostAnnotation: ""}, want: map[string]string{PoolAnnotation: "user"}},
		{name: "the user set the cost that we would", pool: "user", current: map[string]string{CostAnnotation: "2000"}, want: map[string]string{PoolAnnotation: "user"}},
		{name: "somebody changed our cost", pool: "user", current: with(ours("2000", "user"), CostAnnotation, "7"), want: map[string]string{}, foreign: true},
		{name: "somebody changed our cost, and the list was edited", pool: "system", current: with(ours("2000", "user"), CostAnnotation, "7"), want: map[string]string{PoolAnnotation: "system"}, foreign: true},
		{name: "somebody took our cost away", pool: "user", current: without(ours("2000", "user"), CostAnnotation), want: map[string]string{}, foreign: true},
	} {
		got, foreign := Annotations(pools(t), labelled(map[string]string{"pool": tc.pool}), tc.current)
		if diff := cmp.Diff(tc.want, got); diff != "" || foreign != tc.foreign {
			t.Errorf("%s: foreign %v, want %v (-want,+got):\n%s", tc.name, foreign, tc.foreign, diff)
		}
	}
}

// TestUndo: Undo removes what we wrote, and keeps what others wrote.
func TestUndo(t *testing.T) {
	for _, tc := range []struct {
		name          string
		current, want map[string]string
	}{
		{"nothing", nil, map[string]string{}},
		{"ours", map[string]string{PoolAnnotation: "user", CostAnnotation: "2000", OwnCostAnnotation: "2000", "other": "x"},
			map[string]string{PoolAnnotation: "", CostAnnotation: "", OwnCostAnnotation: ""}},
		{"the user's cost", map[string]string{PoolAnnotation: "user", CostAnnotation: "2000"}, map[string]string{PoolAnnotation: ""}},
		{"somebody changed ours", map[string]string{CostAnnotation: "7", OwnCostAnnotation: "2000"}, map[string]string{OwnCostAnnotation: ""}},
		{"somebody took ours away", map[string]string{OwnCostAnnotation: "2000"}, map[string]string{OwnCostAnnotation: ""}},
	} {
		if diff := cmp.Diff(tc.want, Undo(tc.current)); diff != "" {
			t.Errorf("%s (-want,+got):\n%s", tc.name, diff)
		}
	}
}
