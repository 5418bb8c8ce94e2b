package clusterautoscaler

import (
	"fmt"
	"maps"
	"slices"
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
	unlabelled := func(nodes []*corev1.Node) []*corev1.Node {
		var all []*corev1.Node
		for _, node := range nodes {
			node = node.DeepCopy()
			node.Labels = nil
			all = append(all, node)
		}
		return all
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
		{"nothing tells the groups of the nodes", []moment{
			{group(group1, 3, 3, 3), unlabelled(all), "AtMaxSize"},
			{"", unlabelled(tainted("a", "b", "c")), "Shrinking"},
			{"", nil, "StatusBehind"},
			{group(group1, 3, 3, 3), nil, "StatusBehind"},
			{group(group1, 0, 3, 3), nil, "BelowMaxSize"},
		}},
		{"nothing tells the groups of the nodes, and they were replaced", []moment{
			{group(group1, 3, 3, 3), unlabelled(all), "AtMaxSize"},
			{"", unlabelled(plain("a", "b")), "StatusBehind"},
			{group(group1, 3, 3, 3), unlabelled(plain("a", "b", "d")), "StatusBehind"},
			{group(group1, 3, 3, 3), unlabelled(plain("a", "b", "d")), "AtMaxSize"},
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

// TestRemovalIsGivenUp: the mark of a node that the autoscaler did not remove counts for removalTimeout, or for as long
// as pods are terminating on the node.
func TestRemovalIsGivenUp(t *testing.T) {
	const group1 = "aks-userpool-123-vmss"
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"agentpool": "userpool"}}}
	marked := func(ago time.Duration) *corev1.Node {
		node := plain.DeepCopy()
		node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: fmt.Sprint(epoch.Add(-ago).Unix()), Effect: corev1.TaintEffectNoSchedule}}
		return node
	}
	for _, tc := range []struct {
		name     string
		before   *corev1.Node // at the time -1 min; nil if no tracker ran
		node     *corev1.Node
		draining bool
		want     map[time.Duration]string
	}{
		{"the mark is seen to come", plain, marked(0), false, map[time.Duration]string{0: "Shrinking", removalTimeout - time.Second: "Shrinking", removalTimeout: "AtMaxSize"}},
		{"its time is wrong", plain, marked(3 * time.Hour), false, map[time.Duration]string{0: "Shrinking", removalTimeout: "AtMaxSize"}},
		{"it was there before", nil, marked(14 * time.Minute), false, map[time.Duration]string{0: "Shrinking", time.Minute: "AtMaxSize"}},
		{"it was there for hours", nil, marked(3 * time.Hour), false, map[time.Duration]string{0: "AtMaxSize"}},
		{"pods are terminating", nil, marked(3 * time.Hour), true, map[time.Duration]string{0: "Shrinking", time.Hour: "Shrinking"}},
		{"Karpenter's mark", nil, func() *corev1.Node {
			node := plain.DeepCopy()
			node.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
			return node
		}(), false, map[time.Duration]string{0: "Shrinking", time.Hour: "Shrinking"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(2*time.Hour, graces.Provision)
			tracker.Draining = func(string) bool { return tc.draining }
			source := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}
			_ = tracker.Observe(running(group(group1, 1, 1, 1)), epoch.Add(-time.Minute))
			observe := func(node *corev1.Node, now time.Time) nodegroups.SourceStatus {
				nodes := []*corev1.Node{node}
				tracker.ObserveNodes([]OwnedGroups{{Source: source, Nodes: nodes}}, nodes, now)
				return source.Status(nodes, now)
			}
			if tc.before != nil {
				observe(tc.before, epoch.Add(-time.Minute))
			}
			for _, after := range slices.Sorted(maps.Keys(tc.want)) {
				got, want := observe(tc.node, epoch.Add(after)), tc.want[after]
				if got.Reason.Code != want {
					t.Errorf("after %v: %s (%s), want %s", after, got.Reason.Code, got.Reason.Detail, want)
				}
				if stuck := len(tracker.Stuck()) > 0; stuck != (want == "AtMaxSize") {
					t.Errorf("after %v: stuck is %v", after, stuck)
				}
			}
		})
	}
}

// TestGroupsOfOtherClouds: the names of groups are as the cluster autoscaler's providers for AWS, GCE and Cluster API
// make them.
func TestGroupsOfOtherClouds(t *testing.T) {
	const mig = "https://www.googleapis.com/compute/v1/projects/p/zones/europe-west1-b/instanceGroups/gke-prod-default-pool-3b6d7c9c-grp"
	capi := func(kind, name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{capiOwnerKind: kind, capiOwnerName: name}}}
	}
	labelled := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	}
	for _, tc := range []struct {
		node  *corev1.Node
		group string
		want  bool
	}{
		{labelled(map[string]string{eksLabel: "web"}), "eks-web-8ec12c7d-0a1b-4c2d-9e3f-5a6b7c8d9e0f", true},
		{labelled(map[string]string{eksLabel: "web"}), "eks-web-gpu-8ec12c7d-0a1b-4c2d-9e3f-5a6b7c8d9e0f", false},
		{labelled(map[string]string{eksLabel: "web"}), "my-group", false},
		{labelled(map[string]string{gkeLabel: "default-pool", corev1.LabelTopologyZone: "europe-west1-b"}), mig, true},
		{labelled(map[string]string{gkeLabel: "default-pool", corev1.LabelTopologyZone: "europe-west1-c"}), mig, false},
		{labelled(map[string]string{gkeLabel: "other-pool", corev1.LabelTopologyZone: "europe-west1-b"}), mig, false},
		{capi("MachineSet", "md-0-x7k2p"), "MachineDeployment/default/md-0", true},
		{capi("MachineSet", "md-0-x7k2p"), "MachineDeployment/default/md", false},
		{capi("MachineSet", "ms-1"), "MachineSet/default/ms-1", true},
		{capi("MachinePool", "mp-1"), "MachinePool/default/mp-1", true},
		{capi("MachinePool", "mp-1"), "MachineSet/default/mp-1", false},
	} {
		if got := placeOf(tc.node).holds(tc.group); got != tc.want {
			t.Errorf("%v%v in %s: %v, want %v", tc.node.Labels, tc.node.Annotations, tc.group, got, tc.want)
		}
		if known := labelsOf(tc.group); known != nil {
			t.Errorf("the name of %s is taken for AKS's: %v", tc.group, known)
		}
	}
	if g := (Groups{patterns: []string{"*/instanceGroups/gke-prod-*"}}); !g.owns(mig) {
		t.Error("a pattern does not match a group whose name is a URL")
	}
}
