package capacity

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWithStarting(t *testing.T) {
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
		{"a pool that can grow stays so", CanGrow, []*corev1.Node{node(time.Minute, corev1.ConditionFalse)}, CanGrow, 0},
		{"a pool that is unknown stays so", Unknown, []*corev1.Node{node(time.Minute, corev1.ConditionFalse)}, Unknown, 0},
		{"the earliest change counts", Full, []*corev1.Node{node(time.Minute, corev1.ConditionFalse), node(10*time.Minute, corev1.ConditionFalse)}, Growing, 5 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Judgement{State: tc.state}.WithStarting(tc.nodes, grace, now)
			var until time.Time
			if tc.wantUntil != 0 {
				until = now.Add(tc.wantUntil)
			}
			if got.State != tc.want || !got.Until.Equal(until) {
				t.Errorf("WithStarting() = %s until %v, want %s until %v", got.State, got.Until, tc.want, until)
			}
		})
	}
}
