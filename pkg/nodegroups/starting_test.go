package nodegroups

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestStarting(t *testing.T) {
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
			got.startWith(facts.nodeSet(tc.nodes, nil, nil, now))
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

// TestStartupTaints: a node counts as starting while it has a taint that no older node of its group and no template
// has.
func TestStartupTaints(t *testing.T) {
	ready := func(age time.Duration, taints ...string) *corev1.Node {
		return node(age, corev1.ConditionTrue, taints...)
	}
	const grace = 15 * time.Minute
	gpu := ready(0, "gpu").Spec
	for _, tc := range []struct {
		name         string
		nodes        []*corev1.Node
		seen         []NodeTemplate
		template     *corev1.Node
		wantStarting int
		wantTaints   string        // of all templates
		wantUntil    time.Duration // from now; 0: never
	}{
		{name: "an older node has it", nodes: []*corev1.Node{ready(time.Hour, "gpu"), ready(time.Minute, "gpu")}, wantTaints: "gpu"},
		{name: "no older node has it", nodes: []*corev1.Node{ready(time.Hour), ready(time.Minute, "agent")}, wantStarting: 1, wantUntil: 14 * time.Minute},
		{name: "nor have those that came with it", nodes: []*corev1.Node{ready(time.Hour), ready(2*time.Minute, "agent"), ready(time.Minute, "agent")}, wantStarting: 2, wantUntil: 13 * time.Minute},
		{name: "of two taints one is known", nodes: []*corev1.Node{ready(time.Hour, "gpu"), ready(time.Minute, "agent", "gpu")}, wantStarting: 1, wantTaints: "gpu", wantUntil: 14 * time.Minute},
		{name: "it has had it for too long", nodes: []*corev1.Node{ready(time.Hour), ready(grace, "agent")}, wantTaints: "agent"},
		{name: "then it is known", nodes: []*corev1.Node{ready(time.Hour), ready(grace, "agent"), ready(time.Minute, "agent")}, wantTaints: "agent"},
		{name: "the group's first node", nodes: []*corev1.Node{ready(time.Minute, "gpu")}, wantStarting: 1, wantUntil: 2 * time.Minute},
		{name: "the group's first node, after three minutes", nodes: []*corev1.Node{ready(3*time.Minute, "gpu")}, wantTaints: "gpu"},
		{name: "the first of a group that was seen with it", nodes: []*corev1.Node{ready(time.Minute, "gpu")}, seen: []NodeTemplate{{Taints: gpu.Taints}}, wantTaints: "gpu"},
		{name: "the first of a group that was seen with another", nodes: []*corev1.Node{ready(time.Minute, "agent", "gpu")}, seen: []NodeTemplate{{Taints: gpu.Taints}}, wantStarting: 1, wantTaints: "gpu", wantUntil: 14 * time.Minute},
		{name: "the template has it", nodes: []*corev1.Node{ready(time.Minute, "gpu")}, template: &corev1.Node{Spec: gpu}, wantTaints: "gpu"},
		{name: "the template has none", nodes: []*corev1.Node{ready(time.Minute, "gpu")}, template: &corev1.Node{}, wantStarting: 1, wantUntil: 14 * time.Minute},
		{name: "the first was without taints", nodes: []*corev1.Node{ready(2 * time.Minute), ready(time.Minute, "agent")}, wantStarting: 1, wantUntil: 14 * time.Minute},
		{name: "that the first is not ready says nothing", nodes: []*corev1.Node{node(2*time.Minute, corev1.ConditionFalse), ready(time.Minute, "agent")}, wantStarting: 2, wantUntil: 2 * time.Minute},
		{name: "a taint that is known to stay", nodes: []*corev1.Node{ready(time.Minute, "CriticalAddonsOnly", "node-role.kubernetes.io/control-plane")}, wantTaints: "CriticalAddonsOnly node-role.kubernetes.io/control-plane"},
		{name: "the taint of AKS's other autoscaler", nodes: []*corev1.Node{ready(time.Minute, "autoscaling.azure.com/cas-block")}, wantTaints: "autoscaling.azure.com/cas-block"},
		{name: "a soft taint keeps nobody out", nodes: []*corev1.Node{{ObjectMeta: ready(time.Minute).ObjectMeta, Status: ready(time.Minute).Status,
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := Facts{ProvisionGrace: grace}
			k := facts.nodeSet(tc.nodes, tc.seen, tc.template, now)
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
			templates, _ := k.templates()
			for _, s := range templates {
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
