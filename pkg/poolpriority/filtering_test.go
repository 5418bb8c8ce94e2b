package poolpriority

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

func unreported(n *v1.Node) *v1.Node {
	n.Status.Conditions = nil
	return n
}

// TestTaintsOfBurstNodes looks past those taints that the pool's tolerations match, and no others.
func TestTaintsOfBurstNodes(t *testing.T) {
	h := newHarness(t, aks(t))
	extra := virtualNode("virtual").Obj()
	extra.Spec.Taints = append(extra.Spec.Taints, v1.Taint{Key: "maintenance", Effect: v1.TaintEffectNoSchedule})
	h.sched.Cache.AddNode(h.logger, extra)
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	if _, err := h.schedule(pod("a").Obj()); err == nil || !strings.Contains(err.Error(), "untolerated taint") {
		t.Errorf("the pod was told %v, want an untolerated taint", err)
	}
	if node, err := h.schedule(pod("b").Toleration("maintenance").Obj()); node != "virtual" {
		t.Errorf("the pod that tolerates the other taint is on %q (%v)", node, err)
	}
}

// TestUnavailableBurstNodes are not used, even by pods that tolerate everything.
func TestUnavailableBurstNodes(t *testing.T) {
	for _, tc := range []struct {
		name string
		node *v1.Node
	}{
		{"not ready", notReady(virtualNode("virtual").Obj())},
		{"not reported yet", unreported(virtualNode("virtual").Obj())},
		{"cordoned", virtualNode("virtual").Unschedulable(true).Obj()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.sched.Cache.AddNode(h.logger, tc.node)
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			p := pod("p").Obj()
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
			if _, err := h.schedule(p); err == nil || !strings.Contains(err.Error(), gate.ReasonNotAvailable.Sentence) {
				t.Errorf("the pod was told %v, want %q", err, gate.ReasonNotAvailable.Sentence)
			}
		})
	}
}

// TestNewBurstNodeWaitsForItsTaint: a burst node that was just made is not used before the controller has given it the
// gate taint, and nobody is preempted meanwhile; one that does not get it is used all the same.
func TestNewBurstNodeWaitsForItsTaint(t *testing.T) {
	gateTaint := v1.Taint{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: v1.TaintEffectNoSchedule}
	for _, tc := range []struct {
		name   string
		age    time.Duration
		taints []v1.Taint
		off    bool // no gate taint is kept
		alone  bool // no controller is there
		want   string
	}{
		{"new", 0, nil, false, false, ""},
		{"new, and no node has the taint", 0, nil, false, true, "virtual"},
		{"new, with the taint", 0, []v1.Taint{gateTaint}, false, false, "virtual"},
		{"new, with a taint of that key and another effect", 0, []v1.Taint{{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: v1.TaintEffectPreferNoSchedule}}, false, false, ""},
		{"new, and no taint is kept", 0, nil, true, false, "virtual"},
		{"never tainted", taintGrace, nil, false, false, "virtual"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.plugin.gateTaint = !tc.off
			h.plugin.gateTaintSeen.Store(!tc.alone)
			victims := h.countVictims()
			node := virtualNode("virtual").Obj()
			node.CreationTimestamp = metav1.NewTime(time.Now().Add(-tc.age))
			node.Spec.Taints = append(node.Spec.Taints, tc.taints...)
			h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), &st.NodeWrapper{Node: *node})
			h.place(pod("low").Obj(), "user-1")
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			p := pod("high").Priority(10).Obj()
			if tc.want == "" {
				if err := h.fail(p); !strings.Contains(err.Error(), gate.ReasonAwaitsGateTaint.Sentence) {
					t.Errorf("the pod was told %v", err)
				}
			} else if node, err := h.schedule(p); node != tc.want {
				t.Errorf("the pod is on %q (%v), want %s", node, err, tc.want)
			}
			if got := victims(); len(got) > 0 {
				t.Errorf("%v were preempted", got)
			}
		})
	}
}
