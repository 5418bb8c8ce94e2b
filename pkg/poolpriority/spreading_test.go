package poolpriority

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestSpreadOverHosts: a virtual node to which nothing may go is no host without pods to spread over.
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
	for _, tc := range []struct {
		name    string
		state   nodegroups.State
		changes []func(*st.PodWrapper)
		vms     int // of six pods
		virtual int
	}{
		{"the gate is closed", nodegroups.CanGrow, []func(*st.PodWrapper){spread(nil)}, 6, 0},
		{"the gate is closed, and the pod has terms of its own", nodegroups.CanGrow, []func(*st.PodWrapper){spread(nil), terms}, 6, 0},
		{"the gate is closed, and the pod wants all nodes counted", nodegroups.CanGrow, []func(*st.PodWrapper){spread(ptr.To(v1.NodeInclusionPolicyIgnore))}, 2, 0},
		{"the gate is open: it is a host like others", nodegroups.Full, []func(*st.PodWrapper){spread(nil)}, 4, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.addNodes(userNode("user-1"), userNode("user-2"), virtualNode("virtual").Label(v1.LabelHostname, "virtual"))
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
