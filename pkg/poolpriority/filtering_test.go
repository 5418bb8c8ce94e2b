package poolpriority

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/capacity"
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
	h.setCapacity(capacity.Full, capacity.Full)
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
			h.setCapacity(capacity.Full, capacity.Full)
			p := pod("p").Obj()
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
			if _, err := h.schedule(p); err == nil || !strings.Contains(err.Error(), reasonUnavailable) {
				t.Errorf("the pod was told %v, want %q", err, reasonUnavailable)
			}
		})
	}
}
