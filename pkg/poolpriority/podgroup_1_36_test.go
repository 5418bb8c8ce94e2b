//go:build kubernetes_1_36

package poolpriority

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"

	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

var _ interface{ IsPodGroupSchedulingCycle() bool } = fwk.CycleState(nil) // what inPodGroupCycle asks for

// TestRealPodGroupCycle runs kube-scheduler's own cycle for a gang of three, of which only one fits. A pod with the
// same requests then finds the node that the gang had filled.
func TestRealPodGroupCycle(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{features.GenericWorkload: true, features.GangScheduling: true})
	cfg := aks(t)
	args := pluginArgs(cfg)
	args.Pools = args.Pools[:len(args.Pools)-1] // without the burst pool
	h := newHarness(t, cfg)
	h.addNodes(userNode("free"))
	// go mod tidy would look for the type's package in the modules of other minors, which do not have it.
	group := must.Get(clientgoscheme.Scheme.New(schema.GroupVersionKind{Group: "scheduling.k8s.io", Version: "v1alpha2", Kind: "PodGroup"}))(t)
	must.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{
		"metadata": map[string]any{"name": "group", "namespace": "default"},
		"spec":     map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": int64(3)}}},
	}, group))
	must.NoError(t, h.shared.Scheduling().V1alpha2().PodGroups().Informer().GetStore().Add(group))
	large := func(name string) *v1.Pod {
		return pod(name).UID(name).Req(map[v1.ResourceName]string{"cpu": "3"}).Obj()
	}
	for i := range 3 {
		member := large(fmt.Sprint("member-", i))
		compat.JoinPodGroup(member)
		must.NoError(t, h.shared.Core().V1().Pods().Informer().GetStore().Add(member))
		h.sched.Cache.AddPodGroupMember(member)
	}
	for i := range 3 {
		member, err := h.shared.Core().V1().Pods().Lister().Pods("default").Get(fmt.Sprint("member-", i))
		must.NoError(t, err)
		compat.Enqueue(h.ctx, h.sched, member)
	}
	before := h.plugin.index.podGroup
	h.sched.ScheduleOne(h.ctx)
	if before || !h.plugin.index.podGroup {
		t.Error("the plugin did not see the cycle of a pod group")
	}
	if len(h.sched.Cache.Dump().AssumedPods) > 0 {
		t.Fatal("a member of the gang was placed")
	}
	if node, err := h.schedule(large("plain")); node != "free" {
		t.Errorf("the pod is on %q: %v", node, err)
	}
}
