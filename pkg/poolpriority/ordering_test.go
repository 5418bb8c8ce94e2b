package poolpriority

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestGateInTheCycle goes through what a pod is told and where it lands while the gate is closed and open.
func TestGateInTheCycle(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), virtualNode("virtual"))
	h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
	if node, err := h.schedule(pod("first").Obj()); node != "user-1" {
		t.Fatalf("the first pod is on %q (%v), want the user node", node, err)
	}
	_, err := h.schedule(pod("held").Obj())
	if err == nil || !strings.Contains(err.Error(), gate.ReasonCanGrow.Sentence) {
		t.Errorf("the held pod was told %v, want %q", err, gate.ReasonCanGrow.Sentence)
	}
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	if node, err := h.schedule(pod("burst").Obj()); node != "virtual" {
		t.Errorf("the pod is on %q (%v), want the virtual node", node, err)
	}
}

func TestNominatedNodeOfAWorsePool(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("user-1"), systemNode("system-1"), virtualNode("virtual"))
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	for _, nominated := range []string{"system-1", "virtual"} {
		p := pod("nominated-to-" + nominated).Obj()
		p.Status.NominatedNodeName = nominated
		if node, err := h.schedule(p); node != "user-1" {
			t.Errorf("the pod is on %q (%v), want the user node", node, err)
		}
	}
}

// TestSchedulerIsBehind: the gate stays closed while the scheduler's snapshot has fewer nodes of a full pool than the
// gatekeeper's view, or more nodes that are starting. If the view is old, the gate opens nevertheless.
func TestSchedulerIsBehind(t *testing.T) {
	h := newHarness(t, aks(t))
	tiny := map[v1.ResourceName]string{"cpu": "100m", "memory": "1Gi", "pods": "1"}
	ready := func(n *st.NodeWrapper) *st.NodeWrapper {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		return n
	}
	h.addNodes(ready(userNode("user-1").Capacity(tiny)), virtualNode("virtual"))
	known := func(nodes, starting int, age time.Duration) {
		view := &nodegroups.View{Pools: make([]nodegroups.Pool, h.plugin.pools.Len()), Built: time.Now().Add(-age)}
		for i := range h.plugin.pools.Regular() {
			view.Pools[i] = inState(nodegroups.Full)
		}
		view.Pools[0].Nodes, view.Pools[0].Starting = nodes, starting
		h.plugin.gatekeeper.Assume(view)
	}
	known(2, 0, 0)
	_, err := h.schedule(pod("behind").Obj())
	if err == nil || !strings.Contains(err.Error(), gate.ReasonSnapshotStale.Sentence) {
		t.Errorf("a node was not seen yet: %v, want %q", err, gate.ReasonSnapshotStale.Sentence)
	}
	h.addNodes(userNode("user-2").Capacity(tiny)) // seen, and not yet that it is ready
	if _, err = h.schedule(pod("behind-2").Obj()); err == nil || !strings.Contains(err.Error(), gate.ReasonSnapshotStale.Sentence) {
		t.Errorf("it was not seen yet that a node is ready: %v, want %q", err, gate.ReasonSnapshotStale.Sentence)
	}
	known(2, 1, 0)
	if node, err := h.schedule(pod("not-behind").Obj()); node != "virtual" {
		t.Errorf("the pod is on %q (%v), want the virtual node", node, err)
	}
	known(3, 0, time.Minute)
	if node, err := h.schedule(pod("long-ago").Obj()); node != "virtual" {
		t.Errorf("a node that does not come for a minute: the pod is on %q (%v), want the virtual node", node, err)
	}
}
