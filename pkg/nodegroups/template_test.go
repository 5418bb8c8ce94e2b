package nodegroups

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/seed"
)

func TestLastingTaints(t *testing.T) {
	lasting := []corev1.Taint{
		{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "dedicated", Effect: corev1.TaintEffectNoExecute},
		{Key: "node.kubernetes.io.example/x", Effect: corev1.TaintEffectNoSchedule}, // similar to a condition's key
		{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: corev1.TaintEffectNoSchedule},
		{Key: "agent-not-ready", Effect: corev1.TaintEffectNoSchedule}, // without an agent's prefix
	}
	passing := []corev1.Taint{
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Effect: corev1.TaintEffectNoSchedule},
		{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule},
		{Key: "startup-taint.cluster-autoscaler.kubernetes.io/cni", Effect: corev1.TaintEffectNoSchedule},
		{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
		{Key: "remediator.aks.microsoft.com/unschedulable", Effect: corev1.TaintEffectNoSchedule},
		{Key: "remediator.kubernetes.azure.com/unschedulable", Effect: corev1.TaintEffectNoSchedule},
		{Key: "disk.csi.azure.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute},
		{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cluster.x-k8s.io/uninitialized", Effect: corev1.TaintEffectNoSchedule},
		{Key: "aws-node-termination-handler/spot-itn", Effect: corev1.TaintEffectNoSchedule},
		{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule},
	}
	if diff := cmp.Diff(lasting, LastingTaints(append(passing, lasting...))); diff != "" {
		t.Errorf("LastingTaints() (-want,+got):\n%s", diff)
	}
}

// templatesOf returns the templates of the nodes.
func templatesOf(nodes []*corev1.Node, now time.Time) ([]NodeTemplate, time.Time) {
	facts := Facts{ProvisionGrace: 15 * time.Minute}
	return facts.nodeSet(nodes, nil, nil, now).templates()
}

func TestNodeTemplates(t *testing.T) {
	node := func(name, zone, disk, cpu string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, "disk": disk}},
			Spec:       corev1.NodeSpec{Taints: taints},
			Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}
	}
	ready := func(n *corev1.Node, since time.Duration) *corev1.Node {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since))}}
		return n
	}
	nodes := []*corev1.Node{
		node("a", "1", "ssd", "2"),
		node("b", "2", "ssd", "4"),
		node("c", "1", "ssd", "2", corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}),
		node("d", "1", "hdd", "8"),
	}
	for _, n := range nodes {
		ready(n, time.Hour)
	}
	templates, until := templatesOf(nodes, now)
	if !until.IsZero() {
		t.Errorf("the shapes change at %v", until)
	}
	if len(templates) != 2 {
		t.Fatalf("%d shapes, want 2: names, zones, cordons and sizes do not make a kind of node: %+v", len(templates), templates)
	}
	if got := templates[0]; got.Labels["disk"] != "hdd" || len(got.Labels) != 1 {
		t.Errorf("labels of the first shape = %v", got.Labels)
	}
	if got := templates[1].Allocatable.Cpu().String(); got != "4" {
		t.Errorf("most CPU of the ssd nodes = %s, want 4", got)
	}

	// The allocatable resources of a node count once it has been ready for settleTime.
	for _, tc := range []struct {
		name      string
		node      *corev1.Node
		wantCPU   string
		wantUntil time.Duration
	}{
		{"not ready", node("n", "1", "ssd", "2"), "0", 0},
		{"just ready", ready(node("n", "1", "ssd", "2"), 10*time.Second), "0", 20 * time.Second},
		{"ready for long", ready(node("n", "1", "ssd", "2"), time.Minute), "2", 0},
	} {
		templates, until := templatesOf([]*corev1.Node{tc.node}, now)
		var wantUntil time.Time
		if tc.wantUntil > 0 {
			wantUntil = now.Add(tc.wantUntil)
		}
		if templates[0].Allocatable.Cpu().String() != tc.wantCPU || templates[0].Labels["disk"] != "ssd" || !until.Equal(wantUntil) {
			t.Errorf("%s: %+v until %v, want CPU %s until %v", tc.name, templates[0], until, tc.wantCPU, wantUntil)
		}
	}
}

// TestExpectedResources: a node that is younger than the grace may still list resources that a template or an earlier
// node of its group has. Any node may have the resources of DeviceClasses.
func TestExpectedResources(t *testing.T) {
	list := func(name corev1.ResourceName, quantity string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(quantity)}
	}
	const gpu = "example.com/gpu"
	cpu, old, young := list("cpu", "2"), time.Hour, 5*time.Minute
	for _, tc := range []struct {
		name      string
		age       time.Duration
		lists     corev1.ResourceList // besides CPU
		seen      []NodeTemplate
		template  *corev1.Node
		devices   corev1.ResourceList
		want      string // GPUs
		wantUntil time.Duration
	}{
		{name: "nothing is known of it", age: young, want: "0"},
		{name: "the template has it", age: young, template: &corev1.Node{Status: corev1.NodeStatus{Allocatable: list(gpu, "4")}}, want: "4", wantUntil: 10 * time.Minute},
		{name: "an earlier node had it", age: young, seen: []NodeTemplate{{Allocatable: list(gpu, "4")}}, want: "4", wantUntil: 10 * time.Minute},
		{name: "the node lists none yet", age: young, lists: list(gpu, "0"), seen: []NodeTemplate{{Allocatable: list(gpu, "4")}}, want: "4", wantUntil: 10 * time.Minute},
		{name: "the node lists fewer", age: young, lists: list(gpu, "2"), seen: []NodeTemplate{{Allocatable: list(gpu, "4")}}, want: "2"},
		{name: "an old node does not list it any more", age: old, seen: []NodeTemplate{{Allocatable: list(gpu, "4")}}, want: "0"},
		{name: "a DeviceClass has it", age: old, devices: list(gpu, "9"), want: "9"},
	} {
		n := node(tc.age, corev1.ConditionTrue)
		n.Status.Allocatable = maps.Clone(cpu)
		maps.Copy(n.Status.Allocatable, tc.lists)
		facts := Facts{ProvisionGrace: 15 * time.Minute, Devices: tc.devices}
		templates, until := facts.nodeSet([]*corev1.Node{n}, tc.seen, tc.template, now).templates()
		var want time.Time
		if tc.wantUntil > 0 {
			want = now.Add(tc.wantUntil)
		}
		if got := templates[0].Allocatable[gpu]; got.String() != tc.want || !until.Equal(want) || templates[0].Allocatable.Cpu().String() != "2" {
			t.Errorf("%s: %v until %v, want %s until %v", tc.name, templates[0].Allocatable, until, tc.want, want)
		}
	}
}

// TestTemplatesOfManyNodes compares the templates of random nodes with a naive grouping. It also bounds the memory
// allocations for each node.
func TestTemplatesOfManyNodes(t *testing.T) {
	r := seed.New(t, 1)
	var nodes []*corev1.Node
	naive := map[string]int64{}
	for i := range 1000 {
		cpu := r.Int64N(64) + 1
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelHostname: fmt.Sprint(i)}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cpu, resource.DecimalSI)},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}},
			},
		}
		var parts []string
		for _, key := range []string{"a", "b"} {
			if value := r.IntN(3); value > 0 {
				node.Labels[key] = fmt.Sprint(value)
				parts = append(parts, key+node.Labels[key])
			}
		}
		for _, key := range []string{"c", "d"} {
			if r.IntN(2) > 0 {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
				parts = append(parts, key)
			}
		}
		r.Shuffle(len(node.Spec.Taints), func(i, j int) { ts := node.Spec.Taints; ts[i], ts[j] = ts[j], ts[i] })
		kind := strings.Join(parts, ",")
		naive[kind] = max(naive[kind], cpu)
		nodes = append(nodes, node)
	}
	templates, _ := templatesOf(nodes, now)
	got := map[string]int64{}
	for _, s := range templates {
		var parts []string
		for k, v := range s.Labels {
			parts = append(parts, k+v)
		}
		for _, taint := range s.Taints {
			parts = append(parts, taint.Key)
		}
		slices.Sort(parts)
		got[strings.Join(parts, ",")] = s.Allocatable.Cpu().Value()
	}
	if diff := cmp.Diff(naive, got); diff != "" || len(templates) != len(got) {
		t.Errorf("%d shapes (-naive,+got):\n%s", len(templates), diff)
	}
	if perNode := testing.AllocsPerRun(5, func() { templatesOf(nodes, now) }) / float64(len(nodes)); perNode > 5 {
		t.Errorf("%.1f allocations for each node: the kinds have some, the nodes none", perNode)
	}
}

func TestContradiction(t *testing.T) {
	gpu := corev1.Taint{Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
	node := func(labels map[string]string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	plain := NodeTemplate{Labels: map[string]string{"disk": "ssd", "more": "x"}}
	tainted := NodeTemplate{Labels: map[string]string{"disk": "ssd"}, Taints: []corev1.Taint{gpu}}
	for _, tc := range []struct {
		name     string
		template *corev1.Node
		kinds    []NodeTemplate
		want     string
	}{
		{"no template", nil, []NodeTemplate{plain}, ""},
		{"no nodes", node(map[string]string{"disk": "hdd"}), nil, ""},
		{"it is silent of a label", node(map[string]string{"disk": "ssd"}), []NodeTemplate{plain}, ""},
		{"a label", node(map[string]string{"disk": "hdd"}), []NodeTemplate{plain}, `label disk is "ssd", not "hdd"`},
		{"a label that the nodes lack", node(map[string]string{"team": "a"}), []NodeTemplate{plain}, `label team is "", not "a"`},
		{"what is assumed of a node that does not say", node(map[string]string{corev1.LabelOSStable: "linux"}), []NodeTemplate{plain}, ""},
		{"what is assumed, and is not so", node(map[string]string{corev1.LabelOSStable: "linux"}), []NodeTemplate{{Labels: map[string]string{corev1.LabelOSStable: "windows"}}}, `label kubernetes.io/os is "windows", not "linux"`},
		{"a zone", node(map[string]string{corev1.LabelTopologyZone: "1"}), []NodeTemplate{plain}, ""},
		{"a taint", node(nil, gpu), []NodeTemplate{plain}, "no taint sku=gpu:NoSchedule"},
		{"no taint", node(nil), []NodeTemplate{tainted}, "taint sku=gpu:NoSchedule, which the template lacks"},
		{"one kind is as it says", node(nil, gpu), []NodeTemplate{plain, tainted}, ""},
	} {
		if got := Contradiction(tc.template, tc.kinds); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestVariedLabels: if there would be more than maxTemplates templates, the labels with the most values are left out,
// and are listed in Varied.
func TestVariedLabels(t *testing.T) {
	k := nodeSet{nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"role": ""}}}, {}}}
	if got := k.mostVaried(); !slices.Equal(got, []string{"role"}) {
		t.Errorf("an empty label, and none: %q", got)
	}
	nodes := func(n int, label func(i int, labels map[string]string), taints ...corev1.Taint) []*corev1.Node {
		var all []*corev1.Node
		for i := range n {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"disk": []string{"ssd", "hdd"}[i%2]}}, Spec: corev1.NodeSpec{Taints: taints}}
			label(i, node.Labels)
			all = append(all, node)
		}
		return all
	}
	for _, tc := range []struct {
		name   string
		nodes  []*corev1.Node
		kinds  int
		varied []string
	}{
		{"none", nodes(200, func(int, map[string]string) {}), 2, nil},
		{"few values", nodes(200, func(i int, l map[string]string) { l["team"] = fmt.Sprint(i % 20) }), 20, nil},
		{"one for each", nodes(200, func(i int, l map[string]string) { l["seen"] = fmt.Sprint(i) }), 2, []string{"seen"}},
		{"two for each", nodes(200, func(i int, l map[string]string) { l["seen"], l["id"] = fmt.Sprint(i), fmt.Sprint(-i) }), 2, []string{"id", "seen"}},
		{"few values and one for each", nodes(200, func(i int, l map[string]string) { l["seen"], l["team"] = fmt.Sprint(i), fmt.Sprint(i%20) }), 20, []string{"seen"}},
		{"one for half of them", nodes(200, func(i int, l map[string]string) {
			if i%2 == 0 {
				l["seen"] = fmt.Sprint(i)
			}
		}), 2, []string{"seen"}},
		{"as few nodes as kinds", nodes(maxTemplates, func(i int, l map[string]string) { l["seen"] = fmt.Sprint(i) }), maxTemplates, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			templates, _ := templatesOf(tc.nodes, now)
			if len(templates) != tc.kinds {
				t.Fatalf("%d kinds, want %d", len(templates), tc.kinds)
			}
			for _, s := range templates {
				if !slices.Equal(s.Varied, tc.varied) {
					t.Errorf("varied: %v, want %v", s.Varied, tc.varied)
				}
				for _, key := range s.Varied {
					if _, ok := s.Labels[key]; ok {
						t.Errorf("label %s is said to be known", key)
					}
				}
			}
		})
	}
	tainted := nodes(200, func(i int, l map[string]string) { l["seen"] = fmt.Sprint(i) })
	for i, node := range tainted {
		node.Spec.Taints = []corev1.Taint{{Key: fmt.Sprint("t", i), Effect: corev1.TaintEffectNoSchedule}}
	}
	if templates, _ := templatesOf(tainted, now.Add(24*time.Hour)); len(templates) != 200 {
		t.Errorf("%d kinds of 200 nodes each with a taint of its own: none may be left out", len(templates))
	}
}
