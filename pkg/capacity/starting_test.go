package capacity

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStarting(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	node := func(age time.Duration, ready corev1.ConditionStatus, taints ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		return n
	}
	karpenters := func(n *corev1.Node, initialized string) *corev1.Node {
		n.Labels = map[string]string{"karpenter.sh/nodepool": "default", "karpenter.sh/initialized": initialized}
		return n
	}
	const grace = 15 * time.Minute
	for _, tc := range []struct {
		name      string
		state     State
		nodes     []*corev1.Node
		want      State
		wantUntil time.Duration // from now; 0: never
	}{
		{"one has a startup taint", Full, []*corev1.Node{node(time.Minute, corev1.ConditionTrue, "startup-taint.cluster-autoscaler.kubernetes.io/gpu")}, Growing, 14 * time.Minute},
		{"one waits for a CSI driver", Full, []*corev1.Node{node(time.Minute, corev1.ConditionTrue, "disk.csi.azure.com/agent-not-ready")}, Growing, 14 * time.Minute},
		{"one is drained by AKS", Full, []*corev1.Node{node(time.Minute, corev1.ConditionTrue, "remediator.kubernetes.azure.com/unschedulable")}, Full, 0},
		{"one of Karpenter's is ready and not initialized", Full, []*corev1.Node{karpenters(node(time.Minute, corev1.ConditionTrue), "false")}, Growing, 14 * time.Minute},
		{"one of Karpenter's is initialized", Full, []*corev1.Node{karpenters(node(time.Minute, corev1.ConditionTrue), "true")}, Full, 0},
		{"all ready", Full, []*corev1.Node{node(time.Minute, corev1.ConditionTrue)}, Full, 0},
		{"one has just come", Full, []*corev1.Node{node(time.Hour, corev1.ConditionTrue), node(time.Minute, corev1.ConditionFalse)}, Growing, 14 * time.Minute},
		{"one is ready and still tainted", Full, []*corev1.Node{node(time.Minute, corev1.ConditionTrue, corev1.TaintNodeNotReady)}, Growing, 14 * time.Minute},
		{"one is not ready for long", Full, []*corev1.Node{node(time.Hour, corev1.ConditionFalse)}, Full, 0},
		{"one is cordoned", Full, []*corev1.Node{node(time.Minute, corev1.ConditionTrue, corev1.TaintNodeUnschedulable)}, Full, 0},
		{"a pool that can grow has one on its way, too", CanGrow, []*corev1.Node{node(time.Minute, corev1.ConditionFalse)}, Growing, 14 * time.Minute},
		{"a pool that is unknown stays so", Unknown, []*corev1.Node{node(time.Minute, corev1.ConditionFalse)}, Unknown, 14 * time.Minute},
		{"the earliest change counts", Full, []*corev1.Node{node(time.Minute, corev1.ConditionFalse), node(10*time.Minute, corev1.ConditionFalse)}, Growing, 5 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := Facts{ProvisionGrace: grace}
			var got Group
			got.State = tc.state
			got.startWith(facts.kinds(tc.nodes, nil, nil, now))
			var until time.Time
			if tc.wantUntil != 0 {
				until = now.Add(tc.wantUntil)
			}
			if got.State != tc.want || !got.Until.Equal(until) {
				t.Errorf("%s until %v, want %s until %v", got.State, got.Until, tc.want, until)
			}
		})
	}
}

// TestStrangeTaints: a node is on its way while it has a taint that no older node of its group has, and no template.
func TestStrangeTaints(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	taint := func(key string) corev1.Taint { return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule} }
	node := func(age time.Duration, taints ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: n.CreationTimestamp}}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, taint(key))
		}
		return n
	}
	notReady := func(n *corev1.Node) *corev1.Node {
		n.Status.Conditions[0].Status = corev1.ConditionFalse
		return n
	}
	const grace = 15 * time.Minute
	gpu := []Shape{{Taints: []corev1.Taint{taint("gpu")}}}
	for _, tc := range []struct {
		name         string
		nodes        []*corev1.Node
		seen         []Shape
		template     *corev1.Node
		wantStarting int
		wantTaints   string        // of all kinds
		wantUntil    time.Duration // from now; 0: never
	}{
		{name: "an older node has it", nodes: []*corev1.Node{node(time.Hour, "gpu"), node(time.Minute, "gpu")}, wantTaints: "gpu"},
		{name: "no older node has it", nodes: []*corev1.Node{node(time.Hour), node(time.Minute, "agent")}, wantStarting: 1, wantUntil: 14 * time.Minute},
		{name: "nor have those that came with it", nodes: []*corev1.Node{node(time.Hour), node(2*time.Minute, "agent"), node(time.Minute, "agent")}, wantStarting: 2, wantUntil: 13 * time.Minute},
		{name: "of two taints one is known", nodes: []*corev1.Node{node(time.Hour, "gpu"), node(time.Minute, "agent", "gpu")}, wantStarting: 1, wantTaints: "gpu", wantUntil: 14 * time.Minute},
		{name: "it has had it for too long", nodes: []*corev1.Node{node(time.Hour), node(grace, "agent")}, wantTaints: "agent"},
		{name: "then it is known", nodes: []*corev1.Node{node(time.Hour), node(grace, "agent"), node(time.Minute, "agent")}, wantTaints: "agent"},
		{name: "the group's first node", nodes: []*corev1.Node{node(time.Minute, "gpu")}, wantStarting: 1, wantUntil: 2 * time.Minute},
		{name: "the group's first node, after three minutes", nodes: []*corev1.Node{node(3*time.Minute, "gpu")}, wantTaints: "gpu"},
		{name: "the first of a group that was seen with it", nodes: []*corev1.Node{node(time.Minute, "gpu")}, seen: gpu, wantTaints: "gpu"},
		{name: "the first of a group that was seen with another", nodes: []*corev1.Node{node(time.Minute, "agent", "gpu")}, seen: gpu, wantStarting: 1, wantTaints: "gpu", wantUntil: 14 * time.Minute},
		{name: "the template has it", nodes: []*corev1.Node{node(time.Minute, "gpu")}, template: &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint("gpu")}}}, wantTaints: "gpu"},
		{name: "the template has none", nodes: []*corev1.Node{node(time.Minute, "gpu")}, template: &corev1.Node{}, wantStarting: 1, wantUntil: 14 * time.Minute},
		{name: "the first was without taints", nodes: []*corev1.Node{node(2 * time.Minute), node(time.Minute, "agent")}, wantStarting: 1, wantUntil: 14 * time.Minute},
		{name: "that the first is not ready says nothing", nodes: []*corev1.Node{notReady(node(2 * time.Minute)), node(time.Minute, "agent")}, wantStarting: 2, wantUntil: 2 * time.Minute},
		{name: "a taint that is known to stay", nodes: []*corev1.Node{node(time.Minute, "CriticalAddonsOnly", "node-role.kubernetes.io/control-plane")}, wantTaints: "CriticalAddonsOnly node-role.kubernetes.io/control-plane"},
		{name: "a soft taint keeps nobody out", nodes: []*corev1.Node{{ObjectMeta: node(time.Minute).ObjectMeta, Status: node(time.Minute).Status,
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := Facts{ProvisionGrace: grace}
			k := facts.kinds(tc.nodes, tc.seen, tc.template, now)
			var g Group
			g.State = Full
			g.startWith(k)
			if g.Starting != tc.wantStarting || (g.State == Growing) != (tc.wantStarting > 0) {
				t.Errorf("%d are starting, the group is %s; want %d", g.Starting, g.State, tc.wantStarting)
			}
			var until time.Time
			if tc.wantUntil > 0 {
				until = now.Add(tc.wantUntil)
			}
			if !g.Until.Equal(until) {
				t.Errorf("until %v, want %v", g.Until, until)
			}
			var got []string
			shapes, _ := k.shapes()
			for _, s := range shapes {
				for _, taint := range s.Taints {
					got = append(got, taint.Key)
				}
			}
			if strings.Join(got, " ") != tc.wantTaints {
				t.Errorf("the kinds have the taints %v, want %s", got, tc.wantTaints)
			}
		})
	}
}
