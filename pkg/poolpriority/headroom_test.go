package poolpriority

import (
	"math"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// TestMakeRoom: no pool can grow, and the virtual node has room. A pod preempts a placeholder before it bursts, and only
// a placeholder.
func TestMakeRoom(t *testing.T) {
	never := v1.PreemptNever
	placeholder := func(name string) *st.PodWrapper { return pod(name).Priority(-10) }
	for name, tc := range map[string]struct {
		user, system *v1.Pod
		pod          *v1.Pod
		budget       bool // keeps pods with the label app=kept
		below        int32
		want         string // who is preempted; empty if the pod bursts
	}{
		"a placeholder":                  {placeholder("a").Obj(), pod("b").Obj(), pod("p").Obj(), false, 0, "a"},
		"one that may take a minute":     {placeholder("a").TerminationGracePeriodSeconds(60).Obj(), pod("b").Obj(), pod("p").Obj(), false, 0, "a"},
		"one that may take longer":       {placeholder("a").TerminationGracePeriodSeconds(61).Obj(), pod("b").Obj(), pod("p").Obj(), false, 0, ""},
		"of the better pool":             {placeholder("a").Obj(), placeholder("b").Obj(), pod("p").Obj(), false, 0, "a"},
		"in the worse pool":              {pod("a").Obj(), placeholder("b").Obj(), pod("p").Obj(), false, 0, "b"},
		"a budget keeps the placeholder": {placeholder("a").Label("app", "kept").Obj(), pod("b").Obj(), pod("p").Priority(10).Obj(), true, 0, "a"},
		"a lower limit":                  {placeholder("a").Obj(), placeholder("b").Priority(-50).Obj(), pod("p").Obj(), false, -20, "b"},
		"no pod of a negative priority":  {pod("a").Obj(), pod("b").Obj(), pod("p").Priority(10).Obj(), false, 0, ""},
		"it is too small":                {placeholder("a").Obj(), pod("b").Obj(), pod("p").Req(map[v1.ResourceName]string{"cpu": "1"}).Obj(), false, 0, ""},
		"the pod may not use the node":   {placeholder("a").Obj(), pod("b").Obj(), pod("p").NodeAffinityNotIn("agentpool", []string{"userpool"}).Obj(), false, 0, ""},
		"the pod preempts nobody":        {placeholder("a").Obj(), pod("b").Obj(), pod("p").PreemptionPolicy(never).Obj(), false, 0, ""},
		"turned off":                     {placeholder("a").Obj(), pod("b").Obj(), pod("p").Obj(), false, math.MinInt32, ""},
		"the pod has a lower priority": {placeholder("a").Obj(), pod("b").Obj(),
			pod("p").Priority(-10).Annotation(pool.BurstAnnotation, pool.BurstBelowPriority).Obj(), false, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := aks(t)
			setBurst(cfg, func(b *configv1.Burst) { b.MakeRoom.BelowPriority = &tc.below })
			h := newHarness(t, cfg)
			victims := h.countVictims()
			vm := map[v1.ResourceName]string{"cpu": "1500m", "memory": "16Gi", "pods": "10"}
			h.addNodes(userNode("user").Capacity(vm), systemNode("system").Capacity(vm), virtualNode("virtual"))
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			h.place(tc.user, "user")
			h.place(tc.system, "system")
			for _, node := range []string{"user", "system"} { // 500m are left for nobody
				h.place(half("rest-"+node), node)
			}
			if tc.budget {
				kept := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default"},
					Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}}
				must.NoError(t, h.shared.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(kept))
			}
			if tc.want == "" {
				if node, err := h.schedule(tc.pod); err != nil || node != "virtual" {
					t.Errorf("the pod is on %q: %v", node, err)
				}
				return
			}
			said := h.fail(tc.pod).Error()
			if got := victims(); !slices.Equal(got, []string{tc.want}) || !strings.Contains(said, gate.ReasonMakesRoom.Sentence) {
				t.Fatalf("%v were preempted, want %s: %s", got, tc.want, said)
			}
			h.remove(tc.want)
			if node, err := h.schedule(tc.pod); err != nil || node == "virtual" {
				t.Errorf("with the room, the pod is on %q: %v", node, err)
			}
		})
	}
}

// TestMakeRoomInVain: each cycle in which a pod tries to make room counts, and after three tries the pod bursts.
func TestMakeRoomInVain(t *testing.T) {
	h := newHarness(t, aks(t))
	h.countVictims()
	h.addNodes(userNode("user").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), virtualNode("virtual"))
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	h.place(pod("a").Priority(-10).Obj(), "user")
	_ = h.fail(pod("p").Obj())
	if n := h.plugin.roomTries.count("p"); n != 1 {
		t.Errorf("%d tries, want 1", n)
	}
	h.plugin.roomTries.Add(types.UID("q"), maxRoomTries)
	if node, err := h.schedule(pod("q").Obj()); err != nil || node != "virtual" {
		t.Errorf("after %d tries, the pod is on %q: %v", maxRoomTries, node, err)
	}
}
