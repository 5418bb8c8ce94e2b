package held

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
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
		pods := h.WithinBudgets(pools, func() []aci.Use { return []aci.Use{{Pods: inPool}} }, now)
		if got := slices.Sorted(maps.Keys(pods)); !slices.Equal(got, want) {
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
	now = now.Add(reservationTTL)
	requeues("it does not come back", "default/waits0")
	inPool = 0
	requeues("the burst node goes", "default/waits1", "default/waits2")
}
