package clusterautoscaler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestNodesCorrectTheStatus: while VMs are removed, the status shows the group at its maximum for one or two writes
// longer than the nodes do (recorded run H).
func TestNodesCorrectTheStatus(t *testing.T) {
	const group1 = "aks-userpool-123-vmss"
	plain := func(names ...string) []*corev1.Node {
		var nodes []*corev1.Node
		for _, name := range names {
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"agentpool": "userpool"}}})
		}
		return nodes
	}
	tainted := func(names ...string) []*corev1.Node {
		nodes := plain(names...)
		for _, node := range nodes {
			node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}
		return nodes
	}
	both := func(a, b []*corev1.Node) []*corev1.Node { return append(a, b...) }
	all := plain("a", "b", "c")
	type moment struct {
		write string // the new status; "": none
		nodes []*corev1.Node
		want  string
	}
	for _, tc := range []struct {
		name    string
		moments []moment
	}{
		{"run H: three empty VMs are removed", []moment{
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"", tainted("a", "b", "c"), "Shrinking"},
			{group(group1, 3, 3, 3), tainted("a", "b", "c"), "Shrinking"}, // by the loop that set the taints
			{group(group1, 3, 3, 3), tainted("a", "b", "c"), "Shrinking"},
			{"", nil, "StatusBehind"}, // without StatusBehind, 4 of 5 new pods burst here
			{group(group1, 0, 3, 3), nil, "BelowMaxSize"},
		}},
		{"the loop that is under way when they go writes what it saw at its start", []moment{
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"", both(plain("a"), tainted("b", "c")), "Shrinking"},
			{"", plain("a"), "StatusBehind"},
			{group(group1, 3, 3, 3), plain("a"), "StatusBehind"},
			{group(group1, 1, 1, 3), plain("a"), "BelowMaxSize"},
		}},
		{"the target does not fall: they were replaced", []moment{
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"", plain("a", "b"), "StatusBehind"},
			{group(group1, 3, 3, 3), plain("a", "b"), "StatusBehind"},
			{group(group1, 3, 3, 3), plain("a", "b", "d"), "AtMaxSize"},
		}},
		{"the taint is taken away again", []moment{
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"", both(plain("a", "b"), tainted("c")), "Shrinking"},
			{"", all, "AtMaxSize"},
		}},
		{"a node of another group goes", []moment{
			{group(group1, 3, 3, 3) + group("aks-other-456-vmss", 1, 1, 1), append(plain("a", "b", "c"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"agentpool": "other"}}}), "AtMaxSize"},
			{"", all, "AtMaxSize"},
		}},
		{"a node by its scale set, whatever its labels say", []moment{
			{group(group1, 1, 1, 1), []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"agentpool": "other"}},
				Spec: corev1.NodeSpec{ProviderID: "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/AKS-userpool-123-vmss/virtualMachines/0"}}}, "AtMaxSize"},
			{"", nil, "StatusBehind"},
		}},
		{"the status cannot be read in between", []moment{
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"{", all, "StatusUnreadable"},
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"", plain("a", "b"), "StatusBehind"},
		}},
		{"a node goes while the status cannot be read", []moment{
			{group(group1, 3, 3, 3), all, "AtMaxSize"},
			{"{", all, "StatusUnreadable"},
			{"", plain("a", "b"), "StatusUnreadable"},
			{group(group1, 3, 3, 3), plain("a", "b"), "StatusBehind"},
			{group(group1, 3, 3, 3), plain("a", "b"), "AtMaxSize"},
		}},
		{"a node goes before there is a status", []moment{
			{"", all, "StatusMissing"},
			{"", plain("a", "b"), "StatusMissing"},
			{group(group1, 3, 3, 3), plain("a", "b"), "StatusBehind"},
			{group(group1, 3, 3, 3), plain("a", "b"), "AtMaxSize"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			source := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}
			for i, m := range tc.moments {
				now := epoch.Add(time.Duration(i) * time.Second)
				if m.write != "" {
					cm := running(m.write)
					cm.Annotations = map[string]string{LastUpdatedAnnotation: fmt.Sprint(i)}
					_ = tracker.Observe(cm, now)
				}
				tracker.ObserveNodes([]OwnedGroups{{Source: source, Nodes: m.nodes}}, m.nodes, now)
				got := source.Status(m.nodes, now)
				if got.Reason.Code != m.want || (m.want == "Shrinking" || m.want == "StatusBehind") != (got.State == nodegroups.CanGrow && m.want != "BelowMaxSize") {
					t.Errorf("moment %d: %s %s (%s), want %s", i, got.State, got.Reason.Code, got.Reason.Detail, m.want)
				}
			}
		})
	}
}
