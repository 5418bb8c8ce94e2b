package poolpriority

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestSpreadOverHosts: a virtual node that the pod may not use is no host without pods to spread over. One that it may use
// is no host before VMs are full, unless the pod asks for a number of hosts.
func TestSpreadOverHosts(t *testing.T) {
	spread := func(policy *v1.NodeInclusionPolicy) func(*st.PodWrapper) {
		return func(p *st.PodWrapper) {
			p.Label("app", "web")
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, NodeAffinityPolicy: policy}}
		}
	}
	terms := func(p *st.PodWrapper) {
		p.NodeAffinityNotIn(v1.LabelHostname, []string{"other"})
	}
	domains := func(p *st.PodWrapper) { p.Spec.TopologySpreadConstraints[0].MinDomains = ptr.To(int32(2)) }
	for _, tc := range []struct {
		name    string
		state   nodegroups.State
		pods    string // how many pods each VM takes
		node    func(*v1.Node)
		changes []func(*st.PodWrapper)
		vms     int // of six pods
		virtual int
	}{
		{"the gate is closed", nodegroups.CanGrow, "30", nil, []func(*st.PodWrapper){spread(nil)}, 6, 0},
		{"the gate is closed, and the pod has terms of its own", nodegroups.CanGrow, "30", nil, []func(*st.PodWrapper){spread(nil), terms}, 6, 0},
		{"the gate is closed, and the pod wants all nodes counted", nodegroups.CanGrow, "30", nil, []func(*st.PodWrapper){spread(ptr.To(v1.NodeInclusionPolicyIgnore))}, 2, 0},
		{"the gate is open, and VMs have room", nodegroups.Full, "30", nil, []func(*st.PodWrapper){spread(nil)}, 6, 0},
		{"the gate is open, and VMs have room for some", nodegroups.Full, "2", nil, []func(*st.PodWrapper){spread(nil)}, 4, 2},
		{"the gate is open, and the pod asks for two hosts", nodegroups.Full, "30", nil, []func(*st.PodWrapper){spread(nil), domains}, 4, 2},
		{"the gate is open, and the pod wants all nodes counted", nodegroups.Full, "30", nil, []func(*st.PodWrapper){spread(ptr.To(v1.NodeInclusionPolicyIgnore))}, 4, 2},
		{"it is cordoned", nodegroups.Full, "30", func(n *v1.Node) { n.Spec.Unschedulable = true }, []func(*st.PodWrapper){spread(nil), domains}, 6, 0},
		{"it is not ready", nodegroups.Full, "30", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionFalse }, []func(*st.PodWrapper){spread(nil), domains}, 6, 0},
		{"it has a taint", nodegroups.Full, "30", func(n *v1.Node) { n.Spec.Taints[0].Key = "x" }, []func(*st.PodWrapper){spread(nil), domains}, 6, 0},
		{"it is in no burst pool", nodegroups.Full, "30", func(n *v1.Node) { n.Labels["mine"] = "no" }, []func(*st.PodWrapper){spread(nil), domains}, 6, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := aks(t)
			pluginArgs(cfg).Pools[2].NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "mine", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"no"}}}
			h, virtual := newHarness(t, cfg), virtualNode("virtual")
			if tc.node != nil {
				tc.node(virtual.Obj())
			}
			size := map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": tc.pods}
			h.addNodes(userNode("user-1").Capacity(size), userNode("user-2").Capacity(size), virtual)
			h.setCapacity(tc.state, tc.state)
			got := map[string]int{}
			for i := range 6 {
				p := pod(fmt.Sprint("web-", i))
				for _, change := range tc.changes {
					change(p)
				}
				if node, err := h.schedule(p.Obj()); err == nil {
					got[node]++
				}
			}
			if vms := got["user-1"] + got["user-2"]; vms != tc.vms || got["virtual"] != tc.virtual {
				t.Errorf("%v, want %d on VMs and %d on the virtual node", got, tc.vms, tc.virtual)
			}
		})
	}
}

// TestSpreadInVain: the gate is open, VMs are full, and the virtual node is beyond the skew, or is full itself. The cycle
// fails with the reasons of all nodes, and the plugin that rejected the virtual node may requeue the pod.
func TestSpreadInVain(t *testing.T) {
	h := newHarness(t, aks(t))
	size := map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "1"}
	h.addNodes(userNode("user-1").Capacity(size), userNode("user-2").Capacity(size), virtualNode("virtual"))
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	h.place(pod("filler").Obj(), "user-1")
	spread := func(name string) *v1.Pod {
		p := pod(name).Label("app", "web")
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
		return p.Obj()
	}
	for _, want := range []string{"user-2", "virtual"} {
		if node, err := h.schedule(spread("on-" + want)); node != want {
			t.Fatalf("on %q (%v), want %s", node, err, want)
		}
	}
	pinned := spread("pinned")
	pinned.Spec.NodeSelector = map[string]string{v1.LabelHostname: "virtual"}
	pinned.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("9999500m")
	for want, p := range map[string]*v1.Pod{names.PodTopologySpread: spread("last"), names.NodeResourcesFit: pinned} {
		err := h.fail(p)
		var fit *framework.FitError
		if says := map[string]string{names.PodTopologySpread: "1 node(s) didn't match pod topology spread constraints", names.NodeResourcesFit: "1 Insufficient cpu"}[want]; !errors.As(err, &fit) ||
			!strings.Contains(err.Error(), says) || !fit.Diagnosis.UnschedulablePlugins.Has(want) {
			t.Errorf("failed with %v by %v, want %s", err, fit.Diagnosis.UnschedulablePlugins, want)
		}
	}
}
