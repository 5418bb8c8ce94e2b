//go:build kubernetes_1_37

package poolpriority

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/test/must"
)

// TestPlacement: in the cycle of a pod group, only nodes of the current placement are found. The other nodes have room.
func TestPlacement(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("full"), userNode("free"), userNode("other"))
	large := func(name string) *v1.Pod { return pod(name).Req(map[v1.ResourceName]string{"cpu": "3"}).Obj() }
	h.place(large("first"), "full")
	snapshot := h.sched.Profiles[ourProfile].SnapshotSharedLister().(*cache.Snapshot)
	must.NoError(t, h.sched.Cache.UpdateSnapshot(h.logger, snapshot))
	for inside, want := range map[string]bool{"full": false, "free": true} {
		must.NoError(t, snapshot.AssumePlacement(&fwk.Placement{Nodes: []fwk.NodeInfo{must.Get(snapshot.Get(inside))(t)}}))
		state := groupCycle{framework.NewCycleState()}
		_, status, _ := h.sched.Profiles[ourProfile].RunPreFilterPlugins(h.ctx, state, large("member"))
		if c := mustCycle(h, state); !status.IsSuccess() || c.narrowed != want || want && (len(c.found) != 1 || !c.found.Has(inside)) {
			t.Errorf("in a placement of node %s: found %v (%v)", inside, c.found, status)
		}
		snapshot.ForgetPlacement()
	}
}
