package held

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// poolsWithLimit returns one burst pool with a budget of this number of pods.
func poolsWithLimit(t *testing.T, pods int32) pool.List {
	t.Helper()
	return must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "virtual-kubelet"}},
		Burst: &configv1.Burst{Limits: &configv1.BurstLimits{Pods: pods}}}}}))(t)
}

// usedBy returns what this number of pods uses of one burst pool.
func usedBy(pods int) func() ([]aci.Use, []map[string]aci.Use, []breaker.Creates) {
	return func() ([]aci.Use, []map[string]aci.Use, []breaker.Creates) {
		return []aci.Use{{Pods: pods}}, []map[string]aci.Use{{}}, make([]breaker.Creates, 1)
	}
}

// TestWithinBudgets: of the pods that only a budget holds, as many are requeued as the budget has room for. Pods with a
// higher priority and older pods come first. No pod is requeued twice for the same room.
func TestWithinBudgets(t *testing.T) {
	pools, h, now, inPool := poolsWithLimit(t, 3), New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), 3
	hold := func(name string, priority int32, reason nodegroups.Reason) {
		p := pod(name)
		p.Spec.Priority = ptr.To(priority)
		h.Add(p, "", &gate.Decision{Burst: []gate.Verdict{{Reason: reason}}}, nil, now)
		now = now.Add(time.Second)
	}
	requeues := func(when string, want ...string) {
		t.Helper()
		if got := h.sends(now, func() {
			h.WithinBudgets(pools, usedBy(inPool), now)
		}); !slices.Equal(got, want) {
			t.Errorf("%s: %v are tried again, want %v", when, got, want)
		}
	}
	for i := range 4 {
		hold(fmt.Sprint("waits", i), 0, gate.ReasonBudgetSpent)
	}
	hold("important", 10, gate.ReasonBudgetSpent)
	hold("held", 20, gate.ReasonCanGrow)
	requeues("the budget is spent")
	inPool--
	requeues("a burst pod was deleted", "default/important")
	requeues("and nothing else happens")
	inPool--
	requeues("a burst pod failed", "default/waits0")
	inPool++
	h.Remove("important")
	requeues("one of those tried again is bound")
	hold("waits0", 0, gate.ReasonBudgetSpent)
	requeues("the other is held again", "default/waits0")
	now = now.Add(admissionTTL)
	requeues("it does not come back", "default/waits0")
	inPool = 0
	requeues("the burst node goes", "default/waits1", "default/waits2")
}

// TestWithinRates: pods that a burst pool's rate holds back are requeued as the rate lets them in, without spares.
func TestWithinRates(t *testing.T) {
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "virtual-kubelet"}},
		Burst: &configv1.Burst{Creates: configv1.BurstCreates{Per5Minutes: ptr.To[int32](20)}}}}}))(t)
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for i := range 30 {
		h.Add(pod(fmt.Sprintf("p%02d", i)), "", &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonBudgetSpent}}}, nil, now.Add(time.Duration(i)*time.Millisecond))
	}
	var creates breaker.Creates
	for i := range 15 {
		creates = append(creates, breaker.Create{UID: types.UID(fmt.Sprint("earlier", i)), At: now.Add(time.Duration(i-100) * time.Second)})
	}
	within := func() (n int, next time.Duration) {
		at := now
		names := h.newly(func() {
			at = h.WithinBudgets(pools, func() ([]aci.Use, []map[string]aci.Use, []breaker.Creates) {
				return []aci.Use{{}}, []map[string]aci.Use{{}}, []breaker.Creates{creates}
			}, now)
		})
		return len(names), at.Sub(now)
	}
	if n, next := within(); n != 5 || next != 230*time.Second { // 5 min and 30 s after the first
		t.Errorf("%d are requeued, the next after %v", n, next)
	}
	if by, _ := h.ByReason(); by["CreateRate"] != 25 {
		t.Errorf("reasons: %v", by)
	}
	now = now.Add(233 * time.Second) // 4 are over, and 5 are reserved
	if n, next := within(); n != 4 || next != time.Second {
		t.Errorf("then %d are requeued, the next after %v", n, next)
	}
}

// TestWithinBudgetsOfNamespaces: a namespace that has spent its budget takes no place of other namespaces' pods, and
// its pods are not requeued in vain. Pods of the first namespace have waited longest.
func TestWithinBudgetsOfNamespaces(t *testing.T) {
	burst := func(name string, pods, perNamespace int32) configv1.Pool {
		b := &configv1.Burst{Limits: &configv1.BurstLimits{Pods: pods}}
		if perNamespace > 0 {
			b.PerNamespace = &configv1.BurstLimits{Pods: perNamespace}
		}
		return configv1.Pool{Name: name, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": name}}, Burst: b}
	}
	for _, tc := range []struct {
		name    string
		pools   []configv1.Pool
		used    []aci.Use
		shares  []map[string]aci.Use
		waiting map[string]int // pods, by namespace
		want    map[string]int // requeued pods, by namespace
	}{
		{"one has spent its budget", []configv1.Pool{burst("aci", 50, 20)}, []aci.Use{{Pods: 20}}, []map[string]aci.Use{{"a": {Pods: 20}}},
			map[string]int{"a": 500, "b": 15}, map[string]int{"b": 15}},
		{"one has a part left", []configv1.Pool{burst("aci", 50, 20)}, []aci.Use{{Pods: 17}}, []map[string]aci.Use{{"a": {Pods: 17}}},
			map[string]int{"a": 500, "b": 15}, map[string]int{"a": 3, "b": 15}},
		{"the pool's budget is for the first, and the spares are of others", []configv1.Pool{burst("aci", 30, 20)}, []aci.Use{{}}, []map[string]aci.Use{{}},
			map[string]int{"a": 500, "b": 500}, map[string]int{"a": 20, "b": 13}}, // three spares
		{"all have spent theirs", []configv1.Pool{burst("aci", 50, 5)}, []aci.Use{{Pods: 10}}, []map[string]aci.Use{{"a": {Pods: 5}, "b": {Pods: 5}}},
			map[string]int{"a": 500, "b": 500}, nil},
		{"without a budget of the pool", []configv1.Pool{burst("aci", 0, 5)}, []aci.Use{{Pods: 1000}}, []map[string]aci.Use{{"a": {Pods: 4}}},
			map[string]int{"a": 500, "b": 500}, map[string]int{"a": 1, "b": 5}},
		{"another pool has room", []configv1.Pool{burst("aci", 50, 5), burst("aci-2", 3, 0)}, []aci.Use{{Pods: 5}, {}}, []map[string]aci.Use{{"a": {Pods: 5}}, {}},
			map[string]int{"a": 500, "b": 5}, map[string]int{"a": 3, "b": 5}},
		{"without budgets of namespaces", []configv1.Pool{burst("aci", 30, 0)}, []aci.Use{{}}, []map[string]aci.Use{{}},
			map[string]int{"a": 500, "b": 500}, map[string]int{"a": 33}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: tc.pools}))(t)
			h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
			for _, namespace := range slices.Sorted(maps.Keys(tc.waiting)) {
				for i := range tc.waiting[namespace] {
					p := pod(fmt.Sprintf("%s-%d", namespace, i))
					p.Namespace = namespace
					now = now.Add(time.Millisecond)
					h.Add(p, "", &gate.Decision{Burst: slices.Repeat([]gate.Verdict{{Reason: gate.ReasonBudgetSpent}}, len(tc.pools))}, nil, now)
				}
			}
			uses := func() ([]aci.Use, []map[string]aci.Use, []breaker.Creates) {
				shares := make([]map[string]aci.Use, len(tc.shares))
				for i := range shares {
					shares[i] = maps.Clone(tc.shares[i])
				}
				return slices.Clone(tc.used), shares, make([]breaker.Creates, len(shares))
			}
			got := map[string]int{}
			for _, name := range h.sends(now, func() { h.WithinBudgets(pools, uses, now) }) {
				got[strings.Split(name, "/")[0]]++
			}
			if !maps.Equal(got, tc.want) {
				t.Errorf("requeued are %v, want %v", got, tc.want)
			}
			for range 3 {
				now = now.Add(time.Second)
				if again := h.newly(func() { h.WithinBudgets(pools, uses, now) }); len(again) > 0 {
					t.Errorf("a second later, %v are admitted, too", again)
				}
			}
			if by, _ := h.ByReason(); by["BudgetSpent"] != h.Count() {
				t.Errorf("%v of %d pods", by, h.Count())
			}
		})
	}
}
