package poolpriority

import (
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

// groupCycle is the state of a cycle of a pod group, as Kubernetes has it since 1.36.
type groupCycle struct{ fwk.CycleState }

func (groupCycle) IsPodGroupSchedulingCycle() bool { return true }

// TestPodGroupCycle plays what Snapshot.AssumePod and ForgetPod of Kubernetes 1.36 do in the cycle of a pod group: pods
// come to nodes of the snapshot and leave them again, and the nodes keep their generations.
func TestPodGroupCycle(t *testing.T) {
	member := func(name, cpu string) *v1.Pod {
		p := pod(name).UID(name).Req(map[v1.ResourceName]string{"cpu": cpu}).Obj()
		compat.JoinPodGroup(p)
		return p
	}
	plain := func(name string) *v1.Pod {
		return pod(name).UID(name).Req(map[v1.ResourceName]string{"cpu": "3"}).Obj()
	}
	assume := func(h *harness, p *v1.Pod, name string) (forget func()) {
		info := must.Get(h.sched.Profiles[ourProfile].SnapshotSharedLister().NodeInfos().Get(name))(h)
		node, generation := info.(*framework.NodeInfo), info.GetGeneration()
		node.AddPodInfo(must.Get(framework.NewPodInfo(p))(h))
		node.Generation = generation
		return func() {
			must.NoError(h, node.RemovePod(h.logger, p))
			node.Generation = generation
		}
	}
	// cycle runs a cycle on the snapshot as it is: SchedulePod would take a new one.
	cycle := func(h *harness, state fwk.CycleState, p *v1.Pod) *cycle {
		h.Helper()
		if _, status, _ := h.sched.Profiles[ourProfile].RunPreFilterPlugins(h.ctx, state, p); !status.IsSuccess() && !status.IsRejected() {
			h.Fatal(status.AsError())
		}
		return mustCycle(h, state)
	}
	ordinary := func() fwk.CycleState { return framework.NewCycleState() }
	group := func() fwk.CycleState { return groupCycle{framework.NewCycleState()} }

	t.Run("the node is full for the group only", func(t *testing.T) {
		h := full(t)
		h.addNodes(userNode("free"))
		h.failed(member("warm", "100")) // takes a snapshot
		forget := assume(h, member("first", "3500m"), "free")
		if c := cycle(h, group(), member("second", "3")); c.narrowed {
			t.Errorf("a member finds room beside another that takes it: %v", c.found)
		}
		forget()
		if c := cycle(h, ordinary(), plain("plain")); !c.narrowed || !c.found.Has("free") {
			t.Error("a pod after the group's cycle does not find the free node")
		}
	})
	t.Run("a diagnosis that was cached before does not answer for the group", func(t *testing.T) {
		h := full(t)
		h.addNodes(userNode("free"))
		h.failed(member("warm", "100"))
		running := member("running", "3500m")
		forget := assume(h, running, "free")
		h.plugin.index.refresh(mustNodes(t, h), true) // as if it had run there all the time
		h.plugin.index.podGroup = false
		h.failed(plain("held"))
		forget()
		if c := cycle(h, group(), member("second", "3")); !c.narrowed || !c.found.Has("free") {
			t.Error("a member does not find the node that the simulation has emptied")
		}
	})
	t.Run("budget and owners", func(t *testing.T) {
		h := withLimits(t, configv1.BurstLimits{Pods: 10})
		must.Do(t)(h.schedule(pod("running").Obj()))
		must.NoError(t, h.sched.Cache.UpdateSnapshot(h.logger, h.sched.Profiles[ourProfile].SnapshotSharedLister().(*cache.Snapshot)))
		x := h.plugin.index
		first := member("first", "1")
		first.OwnerReferences = owner("ReplicaSet", "o")
		forget := assume(h, first, "virtual-1")
		cycle(h, group(), member("second", "1"))
		if used, owned := x.burstUse()[2].Pods, x.podsByOwner(mustNodes(t, h)).living["default/o"]; used != 2 || owned != 1 {
			t.Errorf("in the group's cycle %d pods count against the budget and %d as the owner's, want 2 and 1", used, owned)
		}
		forget()
		cycle(h, ordinary(), pod("plain").Obj())
		if used, owned := x.burstUse()[2].Pods, x.podsByOwner(mustNodes(t, h)).living["default/o"]; used != 1 || owned != 0 {
			t.Errorf("after it %d pods count against the budget and %d as the owner's, want 1 and 0", used, owned)
		}
	})
}

// TestGenericWorkload: with kube-scheduler's own gang scheduling on, a list with a burst pool is rejected.
func TestGenericWorkload(t *testing.T) {
	cfg := aks(t)
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.GenericWorkload, true)
	if _, err := tryHarness(t, cfg); err == nil || !strings.Contains(err.Error(), "the feature gate GenericWorkload is on") {
		t.Errorf("a burst pool beside GenericWorkload: %v", err)
	}
}

// TestSnapshotMethods: index.refresh knows when a node of a snapshot changes without a new generation. A method that is
// new in another minor may be a new way: read it, and add it here.
func TestSnapshotMethods(t *testing.T) {
	known := sets.New("Get", "List", "NodeInfos", "StorageInfos", "HavePodsWithAffinityList", "HavePodsWithRequiredAntiAffinityList", "IsPVCUsedByPods", "NumNodes",
		// Since 1.36, in cycles of pod groups only.
		"AssumePod", "ForgetPod", "AssumePlacement", "ForgetPlacement", "BackupSnapshot", "PodGroupStates", "NumNodesInPlacement", "GetNodeInPlacement", "ListNodesInPlacement",
		// Since 1.37. A mutation changes copies of the nodes, in the cycle of a pod group, and its end puts the nodes back.
		"StartMutations", "EndMutations", "AddPod", "RemovePod", "GetPlacement", "PodGroups", "CompositePodGroups", "CompositePodGroupStates",
		"BuildHierarchySnapshotFromPod", "GetRootKeyForGroup", "HavePodsWithRequiredNonHostScopedAntiAffinityList")
	snapshot := reflect.TypeFor[*cache.Snapshot]()
	for i := range snapshot.NumMethod() {
		if name := snapshot.Method(i).Name; !known.Has(name) {
			t.Errorf("cache.Snapshot has a method %s: may it change a node without a new generation?", name)
		}
	}
}
