package clusterautoscaler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// grown returns a node of the agent pool that has been ready for an hour. Its label kind distinguishes templates.
func grown(name, agentPool, kind string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(-time.Hour)), Labels: map[string]string{"kind": kind}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(epoch.Add(-time.Hour))}}},
	}
	if agentPool != "" {
		n.Labels["kubernetes.azure.com/agentpool"] = agentPool
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func tainted(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func inScaleSet(name string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.ProviderID = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/" + name + "/virtualMachines/0"
	}
}

func ofSize(size string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[corev1.LabelInstanceTypeStable] = size }
}

// ofNodePool makes the node one of Karpenter's NodePool.
func ofNodePool(name string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Labels[nodegroups.KarpenterNodePoolLabel], n.Labels["karpenter.sh/initialized"] = name, "true"
		n.Spec.ProviderID = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/" + n.Name
	}
}

func madeAt(at time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.CreationTimestamp = metav1.NewTime(epoch.Add(at))
		n.Status.Conditions[0].LastTransitionTime = n.CreationTimestamp
	}
}

// described returns the parts of a group's status that the gate reads, and the reason's code.
func described(g *nodegroups.GroupStatus) string {
	text := fmt.Sprintf("%s: %s %s", g.Name, g.State, g.Reason.Code)
	for _, node := range g.Members {
		text += " " + node.Name
	}
	for i := range g.Seen {
		text += " seen=" + g.Seen[i].Labels["kind"]
		for _, taint := range g.Seen[i].Taints {
			text += "!" + taint.Key
		}
	}
	if g.New != nil {
		text += " new"
		for _, key := range slices.Sorted(maps.Keys(g.New.Choices)) {
			text += fmt.Sprintf(" %s=%s", key[strings.LastIndex(key, "/")+1:], strings.Join(g.New.Choices[key], "|"))
		}
		for _, taint := range g.New.Taints {
			text += " !" + taint.Key
		}
	}
	if g.Open {
		text += " open"
	}
	if g.Foreign {
		text += fmt.Sprint(" foreign=", g.MinWait)
	}
	return text
}

// TestGroups: the groups of a pool, with the known templates of their nodes.
func TestGroups(t *testing.T) {
	byNodes := GroupsOf(&configv1.Pool{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "user"}}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}})
	system := GroupsOf(&configv1.Pool{Name: "system", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "system"}}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}})
	patterns := GroupsOf(&configv1.Pool{Name: "user", NodeSelector: &metav1.LabelSelector{}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{NodeGroups: []string{"general-*", "gpu-*"}}})
	named := func(agentPools ...string) Groups {
		return GroupsOf(&configv1.Pool{Name: "user", ClusterAutoscaler: &configv1.ClusterAutoscalerSource{},
			NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "agentpool", Operator: metav1.LabelSelectorOpIn, Values: agentPools}}}})
	}
	const general, gpu, windows, sys = "aks-general-1-vmss", "aks-gpu-2-vmss", "aksnpwin", "aks-sys-3-vmss"
	general1 := grown("g1", "general", "plain")
	gpu1 := grown("gpu1", "gpu", "gpu", tainted("sku"))
	win1 := grown("win1", "npwin", "windows", inScaleSet("AKSnpwin"))
	type step struct {
		status *corev1.ConfigMap // nil: there is none
		nodes  []*corev1.Node    // the pool's
		others []*corev1.Node    // of the pool "system"
		at     time.Duration
		anew   bool // another tracker has restored the state
		frozen bool // the status has not been written since the step before
	}
	for _, tc := range []struct {
		name   string
		groups Groups
		steps  []step
		want   []string
	}{
		{"a GPU group at zero that was seen before", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 1, 1, 3)), nodes: []*corev1.Node{general1, gpu1}},
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aks-gpu-2-vmss: CanGrow BelowMaxSize seen=gpu!sku"}},
		{"the same by a tracker that starts from the memory", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 1, 1, 3)), nodes: []*corev1.Node{general1, gpu1}},
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3)), nodes: []*corev1.Node{general1}, anew: true},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aks-gpu-2-vmss: CanGrow BelowMaxSize seen=gpu!sku"}},
		{"a GPU group at zero that was never seen may be the pool's", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aks-gpu-2-vmss: CanGrow BelowMaxSize new agentpool=gpu agentpool=gpu"}},
		{"one of another pool's nodes is not", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(sys, 1, 1, 3)), nodes: []*corev1.Node{general1}, others: []*corev1.Node{grown("s1", "sys", "plain")}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain"}},
		{"nor is one in which another pool's nodes were seen", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(sys, 1, 1, 3)), nodes: []*corev1.Node{general1}, others: []*corev1.Node{grown("s1", "sys", "plain")}},
			{status: running(group(general, 1, 1, 1), group(sys, 0, 0, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain"}},
		{"nodes that were there for a moment are not remembered", byNodes, []step{
			{status: running(group(gpu, 1, 1, 3)), nodes: []*corev1.Node{grown("gpu1", "gpu", "gpu", madeAt(-time.Minute))}},
			{status: running(group(gpu, 0, 0, 3))},
		}, []string{"aks-gpu-2-vmss: CanGrow BelowMaxSize new agentpool=gpu agentpool=gpu"}},
		{"of nodes that are new, what those before had not is not remembered", byNodes, []step{
			{status: running(group(general, 1, 1, 3)), nodes: []*corev1.Node{general1}},
			{status: running(group(general, 1, 1, 3)), nodes: []*corev1.Node{grown("g2", "general", "plain", madeAt(0), tainted("cni"))}, at: 14 * time.Minute},
		}, []string{"aks-general-1-vmss: CanGrow BelowMaxSize g2 seen=plain"}},
		{"it is once they are as old as VMs may take", byNodes, []step{
			{status: running(group(general, 1, 1, 3)), nodes: []*corev1.Node{general1}},
			{status: running(group(general, 1, 1, 3)), nodes: []*corev1.Node{grown("g2", "general", "plain", madeAt(0), tainted("cni"))}, at: 15*time.Minute + time.Second},
		}, []string{"aks-general-1-vmss: CanGrow BelowMaxSize g2 seen=plain!cni"}},
		{"what others of them have is seen soon", byNodes, []step{
			{status: running(group(gpu, 1, 1, 3)), nodes: []*corev1.Node{gpu1}},
			{status: running(group(gpu, 1, 1, 3)), nodes: []*corev1.Node{grown("gpu1", "gpu", "gpu", tainted("dedicated"))}, at: seeAgain},
			{status: running(group(gpu, 0, 0, 3)), at: 2 * seeAgain},
		}, []string{"aks-gpu-2-vmss: CanGrow BelowMaxSize seen=gpu!dedicated"}},
		{"the memory of a group that is gone is dropped", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 1, 1, 3)), nodes: []*corev1.Node{general1, gpu1}},
			{status: running(group(general, 1, 1, 1)), nodes: []*corev1.Node{general1}},
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aks-gpu-2-vmss: CanGrow BelowMaxSize new agentpool=gpu agentpool=gpu"}},

		{"a Windows group by the scale set of its node", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(windows, 1, 1, 3)), nodes: []*corev1.Node{general1, win1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aksnpwin: CanGrow BelowMaxSize win1 seen=windows"}},
		{"a Windows group by the label of its node", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(windows, 1, 1, 3)), nodes: []*corev1.Node{general1, grown("win1", "npwin", "windows")}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aksnpwin: CanGrow BelowMaxSize win1 seen=windows"}},
		{"a Windows group at zero that was seen before", named("general", "npwin"), []step{
			{status: running(group(general, 1, 1, 1), group(windows, 1, 1, 3)), nodes: []*corev1.Node{general1, win1}},
			{status: running(group(general, 1, 1, 1), group(windows, 0, 0, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aksnpwin: CanGrow BelowMaxSize seen=windows"}},
		{"a Windows group at zero that was never seen, of a pool that names its agent pool", named("general", "npwin"), []step{
			{status: running(group(general, 1, 1, 1), group(windows, 0, 0, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aksnpwin: CanGrow BelowMaxSize new"}},
		{"a pool that names nothing but an agent pool by which no group is called", named("other"), []step{
			{status: running(group(windows, 0, 0, 3))},
		}, []string{": Unknown NoNodeGroup"}},

		{"two groups of a pool of type VirtualMachines", named("vms"), []step{
			{status: running(group("vms/small", 1, 1, 1), group("vms/large", 0, 0, 3)), nodes: []*corev1.Node{grown("v1", "vms", "plain", ofSize("small"))}},
		}, []string{"vms/small: Full AtMaxSize v1 seen=plain", "vms/large: CanGrow BelowMaxSize new agentpool=vms agentpool=vms instance-type=large"}},
		{"two groups of one pool with a node each, one of them Full", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 1, 1, 3)), nodes: []*corev1.Node{general1, gpu1}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "aks-gpu-2-vmss: CanGrow BelowMaxSize gpu1 seen=gpu!sku"}},
		{"nodes of an agent pool that is not autoscaled", byNodes, []step{
			{status: running(group(general, 0, 0, 3)), nodes: []*corev1.Node{grown("m1", "manual", "plain")}},
		}, []string{"aks-general-1-vmss: CanGrow BelowMaxSize new agentpool=general agentpool=general", ": Full NotAutoscaled m1"}},
		{"a pool none of whose nodes is autoscaled", named("manual"), []step{
			{status: running(group(general, 1, 1, 3)), nodes: []*corev1.Node{grown("m1", "manual", "plain")}, others: []*corev1.Node{general1}},
		}, []string{": Unknown NoNodeGroup m1"}},

		{"patterns, and nodes that do not say where they are: those with nodes by the status have them", patterns, []step{
			{status: running(group("general-a", 1, 1, 1), group("gpu-a", 0, 0, 3)), nodes: []*corev1.Node{grown("x", "", "plain")}},
		}, []string{"gpu-a: CanGrow BelowMaxSize new", "general-a: Full AtMaxSize x"}},
		{"and while there is no status", patterns, []step{
			{status: running(group("general-a", 1, 1, 1), group("gpu-a", 0, 0, 3)), nodes: []*corev1.Node{grown("x", "", "plain")}},
			{nodes: []*corev1.Node{grown("x", "", "plain")}},
		}, []string{"gpu-a: Unknown StatusMissing new", "general-a: Unknown StatusMissing x"}},
		{"several groups with nodes cannot be told apart", patterns, []step{
			{status: running(group("general-a", 1, 1, 1), group("general-b", 1, 1, 2), group("gpu-a", 0, 0, 3)), nodes: []*corev1.Node{grown("x", "", "plain"), grown("y", "", "plain")}},
		}, []string{"gpu-a: CanGrow BelowMaxSize new", "general-a,general-b: CanGrow BelowMaxSize x y"}},
		{"several groups of which the status does not say that they have nodes yet", patterns, []step{
			{status: running(group("general-a", 1, 0, 1), group("gpu-a", 0, 0, 3)), nodes: []*corev1.Node{grown("x", "", "plain")}},
		}, []string{"general-a,gpu-a: Growing Provisioning x open"}},
		{"one group without nodes is that of the nodes", patterns, []step{
			{status: running(group("general-a", 1, 0, 1)), nodes: []*corev1.Node{grown("x", "", "plain")}},
		}, []string{"general-a: Growing Provisioning x"}},
		{"a node that says where it is, one that does not, and no group left for it", byNodes, []step{
			{status: running(group(general, 1, 1, 1)), nodes: []*corev1.Node{general1, grown("x", "", "plain")}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", ": Full NotAutoscaled x"}},
		{"nodes of groups that no pattern names", patterns, []step{
			{status: running(group("general-a", 0, 0, 3), group(general, 1, 1, 3)), nodes: []*corev1.Node{general1}},
		}, []string{"general-a: CanGrow BelowMaxSize new", ": Full NotAutoscaled g1"}},

		{"Karpenter's nodes beside a group at its maximum", byNodes, []step{
			{status: running(group(general, 1, 1, 1)), nodes: []*corev1.Node{general1, grown("k1", "", "plain", ofNodePool("default")), grown("k2", "", "plain", ofNodePool("default"))}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", "NodePool/default: CanGrow KarpenterNodes k1 k2 new nodepool=default open foreign=5m0s"}},
		{"Karpenter's nodes are not those of a group at zero, nor do their taints differ", byNodes, []step{
			{status: running(group(gpu, 0, 0, 3)), nodes: []*corev1.Node{
				grown("k1", "", "plain", ofNodePool("surge"), tainted("CriticalAddonsOnly"), tainted("drained")), grown("k2", "", "plain", ofNodePool("surge"), tainted("CriticalAddonsOnly"))}},
		}, []string{"aks-gpu-2-vmss: CanGrow BelowMaxSize new agentpool=gpu agentpool=gpu", "NodePool/surge: CanGrow KarpenterNodes k1 k2 new nodepool=surge !CriticalAddonsOnly open foreign=5m0s"}},
		{"Karpenter's nodes of two NodePools, without the cluster autoscaler", byNodes, []step{
			{nodes: []*corev1.Node{grown("k1", "", "plain", ofNodePool("b")), grown("k2", "", "plain", ofNodePool("a"))}},
		}, []string{": Unknown StatusMissing open", "NodePool/a: CanGrow KarpenterNodes k2 new nodepool=a open foreign=5m0s", "NodePool/b: CanGrow KarpenterNodes k1 new nodepool=b open foreign=5m0s"}},
		{"Karpenter's nodes of a NodePool that is another pool's source", byNodes, []step{
			{status: running(group(general, 1, 1, 1)), nodes: []*corev1.Node{general1, grown("k1", "", "plain", ofNodePool("sourced"))}},
		}, []string{"aks-general-1-vmss: Full AtMaxSize g1 seen=plain", ": Full NotAutoscaled k1"}},
		{"a node that Karpenter removes is not the autoscaler's, and its NodePool can still grow", patterns, []step{
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain"), grown("k1", "", "plain", ofNodePool("default"), tainted("surge"))}},
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain")}, frozen: true},
		}, []string{"general-a: Full AtMaxSize x", "NodePool/default: CanGrow KarpenterNodes new nodepool=default !surge open foreign=5m0s"}},
		{"a NodePool with nodes in two pools", patterns, []step{
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain"), grown("k1", "", "plain", ofNodePool("default"))}, others: []*corev1.Node{grown("k2", "", "plain", ofNodePool("default"))}},
		}, []string{"general-a: Full AtMaxSize x", "NodePool/default: CanGrow KarpenterNodes k1 new nodepool=default open foreign=5m0s"}},
		{"also for another scheduler", patterns, []step{
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain"), grown("k1", "", "plain", ofNodePool("default"))}},
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain")}, anew: true},
		}, []string{"general-a: Full AtMaxSize x", "NodePool/default: CanGrow KarpenterNodes new nodepool=default open foreign=5m0s"}},
		{"for a day", patterns, []step{
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain"), grown("k1", "", "plain", ofNodePool("default"))}},
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain")}, at: time.Hour},
			{status: running(group("general-a", 1, 1, 1)), nodes: []*corev1.Node{grown("x", "", "plain")}, at: 26 * time.Hour},
		}, []string{"general-a: Full AtMaxSize x"}},

		{"a status that is lost: groups are remembered", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 1, 1, 3), group("aks-new-4-vmss", 0, 0, 1)), nodes: []*corev1.Node{general1, gpu1}},
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3), group("aks-new-4-vmss", 0, 0, 1)), nodes: []*corev1.Node{general1}},
			{nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Unknown StatusMissing g1 seen=plain", "aks-gpu-2-vmss: Unknown StatusMissing seen=gpu!sku",
			"aks-new-4-vmss: Unknown StatusMissing new agentpool=new agentpool=new"}},
		{"a status that is lost while schedulers come and go", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 1, 1, 3)), nodes: []*corev1.Node{general1, gpu1}},
			{nodes: []*corev1.Node{general1}, anew: true},
		}, []string{"aks-general-1-vmss: Unknown StatusMissing g1 seen=plain", "aks-gpu-2-vmss: Unknown StatusMissing seen=gpu!sku"}},
		{"a status that is lost, without nodes", byNodes, []step{
			{status: running(group(gpu, 1, 1, 3)), nodes: []*corev1.Node{gpu1}},
			{},
		}, []string{"aks-gpu-2-vmss: Unknown StatusMissing seen=gpu!sku"}},
		{"a status that is lost: another pool's groups", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(sys, 1, 1, 3)), nodes: []*corev1.Node{general1}, others: []*corev1.Node{grown("s1", "sys", "plain")}},
			{nodes: []*corev1.Node{general1}},
		}, []string{"aks-general-1-vmss: Unknown StatusMissing g1 seen=plain"}},
		{"a status that was never seen", byNodes, []step{{nodes: []*corev1.Node{general1}}}, []string{": Unknown StatusMissing g1 open"}},
		{"a stale status", byNodes, []step{
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3)), nodes: []*corev1.Node{general1}},
			{status: running(group(general, 1, 1, 1), group(gpu, 0, 0, 3)), nodes: []*corev1.Node{general1}, at: time.Hour, frozen: true},
		}, []string{"aks-general-1-vmss: Unknown StatusStale g1 seen=plain", "aks-gpu-2-vmss: Unknown StatusStale new agentpool=gpu agentpool=gpu"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			var got []string
			stamp := ""
			for i, s := range tc.steps {
				now := epoch.Add(s.at)
				if !s.frozen {
					stamp = fmt.Sprint(i)
				}
				if s.status != nil {
					s.status.Annotations = map[string]string{LastUpdatedAnnotation: stamp}
				}
				if s.anew {
					tracker = again(t, tracker, now)
				}
				must.NoError(t, tracker.Observe(s.status, now))
				nodes := slices.Concat(s.nodes, s.others)
				tracker.ObserveNodes([]OwnedGroups{{Source: Source{Groups: tc.groups, Graces: graces}, Nodes: s.nodes}, {Source: Source{Groups: system, Graces: graces}, Nodes: s.others}}, nodes, now)
				j := Source{Tracker: tracker, Groups: tc.groups, Graces: graces, NodePools: map[string]bool{"sourced": true}}.Status(s.nodes, now)
				got = nil
				for i := range j.Groups {
					got = append(got, described(&j.Groups[i]))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("groups (-want,+got):\n%s", diff)
			}
		})
	}
}

// again returns a tracker that has restored the state of the old one.
func again(t *testing.T, old *Tracker, now time.Time) *Tracker {
	t.Helper()
	data := must.Get(yaml.Marshal(old.Memory(true, now)))(t)
	var m Memory
	must.NoError(t, yaml.Unmarshal(data, &m))
	tracker := NewTracker(staleAfter, graces.Provision)
	tracker.Restore(m, now)
	return tracker
}

// TestOrphansAreReported: ObserveNodes returns the groups that neither nodes nor the configuration assign to a pool.
func TestOrphansAreReported(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	must.NoError(t, tracker.Observe(running(group("aks-b-1-vmss", 0, 0, 3), group("aks-a-1-vmss", 0, 0, 3), group("aks-c-1-vmss", 1, 1, 3), group("aks-d-1-vmss", 0, 0, 3)), epoch))
	got := tracker.ObserveNodes([]OwnedGroups{{Source: Source{Groups: agentPool("d"), Graces: graces}}}, []*corev1.Node{grown("c1", "c", "plain")}, epoch)
	if diff := cmp.Diff([]string{"aks-a-1-vmss", "aks-b-1-vmss"}, got); diff != "" {
		t.Errorf("orphans (-want,+got):\n%s", diff)
	}
}

// TestElsewhere: a group without nodes whose earlier nodes were in no pool is no orphan, unless these nodes may match a
// pool of the present list.
func TestElsewhere(t *testing.T) {
	by := func(key, value string) OwnedGroups {
		return OwnedGroups{Source: Source{Graces: graces, Groups: GroupsOf(&configv1.Pool{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}})}}
	}
	const lone = "aks-lone-1-vmss"
	before := NewTracker(staleAfter, graces.Provision)
	_ = before.Observe(running(group(lone, 1, 1, 3)), epoch)
	before.ObserveNodes([]OwnedGroups{by("mode", "user")}, []*corev1.Node{grown("l1", "lone", "plain")}, epoch)
	for _, tc := range []struct {
		name  string
		claim OwnedGroups
		want  []string
	}{
		{"the same pools", by("mode", "user"), nil},
		{"a pool that would have them", by("kind", "plain"), []string{lone}},
		{"one that may have them, for labels of the kind say nothing of it", by(corev1.LabelTopologyZone, "1"), []string{lone}},
		{"one of other nodes", by("kind", "gpu"), nil},
	} {
		tracker := again(t, before, epoch.Add(time.Minute))
		_ = tracker.Observe(running(group(lone, 0, 0, 3)), epoch.Add(time.Minute))
		if diff := cmp.Diff(tc.want, tracker.ObserveNodes([]OwnedGroups{tc.claim}, nil, epoch.Add(time.Minute))); diff != "" {
			t.Errorf("%s: orphans (-want,+got):\n%s", tc.name, diff)
		}
	}
}

// TestGracesOfAPool: the groups of a pool have the pool's own graces.
func TestGracesOfAPool(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	must.NoError(t, tracker.Observe(running(group("aks-a-1-vmss", 1, 1, 3, inBackoff), group("aks-b-1-vmss", 3, 1, 3)), epoch))
	for _, tc := range []struct {
		name  string
		own   pool.Graces
		wantA nodegroups.State
		wantB nodegroups.State
	}{
		{"the usual ones", graces, nodegroups.CanGrow, nodegroups.Growing},
		{"none", pool.Graces{}, nodegroups.Full, nodegroups.Full},
		{"longer ones", pool.Graces{Provision: time.Hour, Backoff: time.Hour}, nodegroups.CanGrow, nodegroups.Growing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := Source{Tracker: tracker, Groups: agentPool("a"), Graces: tc.own}.Status(nil, epoch)
			b := Source{Tracker: tracker, Groups: agentPool("b"), Graces: tc.own}.Status(nil, epoch)
			if a.State != tc.wantA || b.State != tc.wantB {
				t.Errorf("%s and %s, want %s and %s", a.State, b.State, tc.wantA, tc.wantB)
			}
			if tc.own.Provision == time.Hour && (!a.Groups[0].Until.Equal(epoch.Add(time.Hour)) || !b.Groups[0].Until.Equal(epoch.Add(time.Hour))) {
				t.Errorf("until %v and %v", a.Groups[0].Until, b.Groups[0].Until)
			}
		})
	}
}

// TestVersion: the version changes with the number of ordered nodes, with the maximum, and when another autoscaler
// takes over.
func TestVersion(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	n := 0
	version := func(cm *corev1.ConfigMap) string {
		t.Helper()
		n++
		cm.Annotations = map[string]string{LastUpdatedAnnotation: fmt.Sprint(n)}
		must.NoError(t, tracker.Observe(cm, epoch))
		return Source{Tracker: tracker, Groups: agentPool("a"), Graces: graces}.Status(nil, epoch).Groups[0].Version
	}
	const a = "aks-a-1-vmss"
	last := version(running(group(a, 1, 1, 3)))
	for _, tc := range []struct {
		name string
		cm   *corev1.ConfigMap
		same bool
	}{
		{"nothing", running(group(a, 1, 1, 3)), true},
		{"a node that is not ready", running(group(a, 1, 0, 3)), true},
		{"backoff", running(group(a, 1, 1, 3, inBackoff)), true},
		{"it rises", running(group(a, 2, 1, 3)), false},
		{"it falls", running(group(a, 1, 1, 3)), false},
		{"another maximum", running(group(a, 1, 1, 4)), false},
		{"another ConfigMap", made("another", running(group(a, 1, 1, 4))), true}, // the ConfigMaps before had no UID
		{"one that was made anew", made("yet another", running(group(a, 1, 1, 4))), false},
	} {
		got := version(tc.cm)
		if (got == last) != tc.same {
			t.Errorf("%s: version %s after %s", tc.name, got, last)
		}
		last = got
	}
}

// TestSizes: the number of ordered nodes without a Node, and the maximum number of nodes.
func TestSizes(t *testing.T) {
	const a, b = "aks-a-1-vmss", "aks-a-2-vmss"
	starting := grown("new", "a", "", inScaleSet(a), tainted(corev1.TaintNodeNotReady))
	old := grown("old", "a", "", inScaleSet(a))
	for _, tc := range []struct {
		name     string
		status   *corev1.ConfigMap
		nodes    []*corev1.Node
		after    time.Duration
		arriving int
		most     int // -1: unknown
	}{
		{"all are there", running(group(a, 1, 1, 3)), []*corev1.Node{old}, 0, 0, 3},
		{"two are ordered", running(group(a, 3, 1, 3)), []*corev1.Node{old}, 0, 2, 3},
		{"one of them exists", running(group(a, 3, 1, 3)), []*corev1.Node{old, starting}, 0, 1, 3},
		{"they never came", running(group(a, 3, 1, 3)), []*corev1.Node{old}, graces.Provision, 0, 3},
		{"two groups", running(group(a, 2, 1, 3), group(b, 1, 0, 4)), []*corev1.Node{old}, 0, 2, 7},
		{"groups whose nodes cannot be told apart", running(group(a, 2, 1, 3), group(b, 1, 1, 4)), []*corev1.Node{grown("x", "", "")}, 0, 1, 7},
		{"no status", nil, []*corev1.Node{old}, 0, 0, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			claim := OwnedGroups{Source: Source{Groups: agentPool("a"), Graces: graces}, Nodes: tc.nodes}
			source := Source{Tracker: tracker, Groups: claim.Groups, Graces: graces}
			for _, after := range []time.Duration{0, tc.after} {
				if tc.status != nil {
					tc.status.Annotations = map[string]string{LastUpdatedAnnotation: after.String()}
				}
				must.NoError(t, tracker.Observe(tc.status, epoch.Add(after)))
				tracker.ObserveNodes([]OwnedGroups{claim}, tc.nodes, epoch.Add(after))
			}
			view := nodegroups.Build([]nodegroups.Facts{{Nodes: tc.nodes, Source: source}}, &nodegroups.View{Pools: make([]nodegroups.Pool, 1)}, epoch.Add(tc.after))
			p := &view.Pools[0]
			most := -1
			if got := p.MaxNodes(); got != nil {
				most = *got
			}
			if p.Arriving() != tc.arriving || most != tc.most {
				t.Errorf("%d arrive and %d is the maximum, want %d and %d, of %d groups", p.Arriving(), most, tc.arriving, tc.most, len(p.Groups))
			}
		})
	}
}

// TestStoppedVMs: in a pool with scale-down mode Deallocate, the nodes of stopped VMs stay and are unready. Nodes of
// other clouds may be suspended. When the autoscaler starts the VMs again, the status has no upcoming nodes. No more of them
// are on their way than were ordered.
func TestStoppedVMs(t *testing.T) {
	const user = "aks-userpool-123-vmss"
	nodes := func(ready int) []*corev1.Node {
		var all []*corev1.Node
		for i := range 5 {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"agentpool": "userpool"}, CreationTimestamp: metav1.NewTime(epoch.Add(-24 * time.Hour))}}
			status := corev1.ConditionUnknown
			if i < ready {
				status = corev1.ConditionTrue
			}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
			all = append(all, node)
		}
		return all
	}
	for _, count := range []string{"unready: {total: %d}", "suspended: %d"} {
		status := func(target, ready, stopped int) string {
			return strings.Replace(group(user, target, ready, 5), "}}}", fmt.Sprintf(", "+count+"}}}", stopped), 1)
		}
		source := Source{Tracker: NewTracker(time.Hour, graces.Provision), Groups: agentPool("userpool"), Graces: graces}
		at := func(after time.Duration, write string, ready int, want string) {
			t.Helper()
			now := epoch.Add(after)
			if write != "" {
				cm := running(write)
				cm.Annotations = map[string]string{LastUpdatedAnnotation: fmt.Sprint(after)}
				must.NoError(t, source.Tracker.Observe(cm, now))
			}
			source.Tracker.ObserveNodes([]OwnedGroups{{Source: source, Nodes: nodes(ready)}}, nodes(ready), now)
			if got := source.Status(nodes(ready), now); got.Reason.Code != want {
				t.Errorf("%s, after %v: %s (%s), want %s", count, after, got.Reason.Code, got.Reason.Detail, want)
			}
		}
		at(0, status(2, 2, 3), 2, "BelowMaxSize")
		at(10*time.Second, status(5, 2, 3), 2, "Provisioning")
		at(20*time.Second, status(5, 2, 3), 3, "Provisioning")
		at(50*time.Second, status(5, 3, 2), 3, "Provisioning")
		at(60*time.Second, status(5, 3, 2), 5, "AtMaxSize") // all are ready before the status shows it
		at(70*time.Second, status(5, 5, 0), 5, "AtMaxSize")
		at(80*time.Second, status(5, 3, 2), 3, "AtMaxSize") // all have come, and two broke
		at(10*time.Second+graces.Provision, status(5, 3, 2), 3, "AtMaxSize")

		source.Tracker = NewTracker(time.Hour, graces.Provision) // one node has been broken for a day, and one is ordered
		at(0, status(4, 3, 1), 3, "BelowMaxSize")
		at(10*time.Second, status(5, 3, 1), 3, "Provisioning")
		at(2*time.Minute, status(5, 4, 1), 4, "AtMaxSize")
		source.Tracker = NewTracker(time.Hour, graces.Provision) // the order is given up
		at(0, status(3, 2, 1), 2, "BelowMaxSize")
		at(10*time.Second, status(4, 2, 1), 2, "Provisioning")
		at(2*time.Minute, status(3, 2, 1), 2, "BelowMaxSize")
		source.Tracker = NewTracker(time.Hour, graces.Provision) // no VM starts, and the autoscaler does not back off
		source.Graces.Provision = graces.Provision / 3
		at(0, status(2, 2, 3), 2, "BelowMaxSize")
		at(10*time.Second, status(5, 2, 3), 2, "Provisioning")
		at(9*time.Second+source.Graces.Provision, status(5, 2, 3), 2, "Provisioning")
		at(10*time.Second+source.Graces.Provision, status(5, 2, 3), 2, "AtMaxSize")
		source.Graces.Provision = graces.Provision
		source.Tracker = NewTracker(time.Hour, graces.Provision) // a node breaks and recovers while two VMs start
		at(0, status(3, 3, 2), 3, "BelowMaxSize")
		at(10*time.Second, status(5, 3, 2), 3, "Provisioning")
		at(20*time.Second, status(5, 1, 4), 1, "Provisioning")
		at(30*time.Second, status(5, 3, 2), 3, "Provisioning")
	}
}
