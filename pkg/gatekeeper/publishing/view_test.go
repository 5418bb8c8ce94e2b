package publishing

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/gatekeeper/usage"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// configOf returns what a Publisher needs to build a status. The pools are user, system and aci.
func configOf(t *testing.T, nodes ...*v1.Node) Config {
	t.Helper()
	args := &configv1.PoolPriorityArgs{StatusConfigMap: "system/status", Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("agentpool", "userpool"), Fixed: &configv1.FixedSource{}},
		{Name: "system", NodeSelector: matching("agentpool", "systempool"), Fixed: &configv1.FixedSource{}},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}},
	}}
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: args.Pools}))(t)
	return Config{Args: args, Pools: pools, Client: fake.NewClientset().CoreV1(), Held: held.New(), Declines: gate.NewDeclines(), Usage: usage.New(""),
		Nodes: func() ([][]*v1.Node, []*v1.Node) { return pools.Group(nodes) }}
}

// TestShares: the usage of each namespace is published if a burst pool has a budget for each namespace.
func TestShares(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}}
	for _, limits := range []*configv1.BurstLimits{nil, {Pods: 3}} {
		config := configOf(t, node)
		config.Args.Pools[2].Burst.PerNamespace = limits
		config.Pools = must.Get(pool.ListOf(config.Args))(t)
		config.Usage = usage.New("ours")
		for i, namespace := range []string{"a", "b", "a"} {
			config.Usage.See(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, UID: types.UID(fmt.Sprint(i))}, Spec: v1.PodSpec{SchedulerName: "ours", NodeName: "virtual", Containers: []v1.Container{{}}}})
		}
		var want []map[string]aci.Use
		if limits != nil {
			want = []map[string]aci.Use{{}, {}, {"a": {Pods: 2, MilliCPU: 2000, Memory: 3e9}, "b": {Pods: 1, MilliCPU: 1000, Memory: 15e8}}}
		}
		v := New(config).status(&Report{View: &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}}).View
		if diff := cmp.Diff(want, v.Shares); diff != "" || v.Burst[2].Pods != 3 {
			t.Errorf("with limits %v, %d pods (-want,+got):\n%s", limits, v.Burst[2].Pods, diff)
		}
	}
}

// TestFullness: the status counts the available nodes of each pool and the nodes in no pool, and has each pool's usage
// and allocatable.
func TestFullness(t *testing.T) {
	node := func(name, key, value string, ready v1.ConditionStatus, cordoned bool) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{key: value}}, Spec: v1.NodeSpec{Unschedulable: cordoned}}
		n.Status.Allocatable = v1.ResourceList{"cpu": resource.MustParse("1900m"), "memory": resource.MustParse("6Gi")}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
		return n
	}
	on := func(name, node string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: node}}
		p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("1Gi")}}}}
		return p
	}
	config := configOf(t, node("a", "agentpool", "userpool", v1.ConditionTrue, false), node("b", "agentpool", "userpool", v1.ConditionFalse, false),
		node("c", "agentpool", "systempool", v1.ConditionTrue, true), node("d", "agentpool", "other", v1.ConditionTrue, false),
		node("e", "type", "virtual-kubelet", v1.ConditionTrue, false))
	for _, p := range []*v1.Pod{on("1", "a"), on("2", "a"), on("3", "b"), on("4", "c"), on("5", "e"), on("6", "d"), on("7", "nowhere")} {
		config.Usage.See(p)
	}
	v := New(config).status(&Report{View: &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}}).View
	if want := []int{1, 0, 1}; !slices.Equal(v.Available, want) || v.Unlisted != 1 {
		t.Errorf("available %v, and %d in no pool, want %v and 1", v.Available, v.Unlisted, want)
	}
	for i, want := range []string{"3 of 1500m 3Gi of 3800m 12Gi", "1 of 500m 1Gi of 1900m 6Gi", "1 of 500m 1Gi of 0 0"} {
		u := &v.Usage[i]
		got := fmt.Sprintf("%d of %s %s of %s %s", u.Pods, u.Requested.Cpu(), u.Requested.Memory(), u.Allocatable.Cpu(), u.Allocatable.Memory())
		if got != want {
			t.Errorf("usage of pool %d is %s, want %s", i, got, want)
		}
	}
}
