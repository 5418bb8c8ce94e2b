package publishing

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// TestBurstNodeNotGated: a burst node without the gate taint becomes a problem after 30 s. While the problem lasts, it
// causes one event.
func TestBurstNodeNotGated(t *testing.T) {
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}}}}))(t)
	node := func(name string, effect v1.TaintEffect) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if effect != "" {
			n.Spec.Taints = []v1.Taint{{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: effect}}
		}
		return n
	}
	start := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	recorder := events.NewFakeRecorder(10)
	ps := NewProblems(recorder, pools, true)
	look := func(after time.Duration, nodes ...*v1.Node) string {
		ps.current = nil
		ps.findWithoutGateTaint([][]*v1.Node{nodes}, start.Add(after))
		ps.Report(klog.Background(), true)
		messages, _ := ps.List()
		return strings.Join(messages, "\n")
	}
	const began = "pool aci: for more than 30s the gate taint poolpriority.dev/gate has been missing on node b. Until"
	for _, step := range []struct {
		name   string
		after  time.Duration
		nodes  []*v1.Node
		want   string // how the problem begins
		due    time.Duration
		events int // so far
	}{
		{"all have it", 0, []*v1.Node{node("a", v1.TaintEffectNoSchedule)}, "", 0, 0},
		{"a new node", time.Second, []*v1.Node{node("a", v1.TaintEffectNoSchedule), node("b", "")}, "", 31 * time.Second, 0},
		{"with an effect that hides it from nobody", 20 * time.Second, []*v1.Node{node("b", v1.TaintEffectPreferNoSchedule)}, "", 31 * time.Second, 0},
		{"for long enough", 31 * time.Second, []*v1.Node{node("b", "")}, began, 0, 1},
		{"and another", 40 * time.Second, []*v1.Node{node("b", ""), node("c", "")}, began, 70 * time.Second, 1},
		{"which is told of as well", 70 * time.Second, []*v1.Node{node("b", ""), node("c", "")}, "pool aci: for more than 30s the gate taint poolpriority.dev/gate has been missing on node b and 1 more. Until", 0, 1},
		{"mended", 80 * time.Second, []*v1.Node{node("b", v1.TaintEffectNoSchedule)}, "", 0, 1},
		{"lost anew", 90 * time.Second, []*v1.Node{node("b", "")}, "", 120 * time.Second, 1},
		{"for long enough again", 120 * time.Second, []*v1.Node{node("b", "")}, began, 0, 2},
	} {
		got := look(step.after, step.nodes...)
		if (got == "") != (step.want == "") || !strings.HasPrefix(got, step.want) {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
		if due := ps.Due.Sub(start); step.due == 0 != ps.Due.IsZero() || step.due > 0 && due != step.due {
			t.Errorf("%s: due after %v, want %v", step.name, due, step.due)
		}
		if n := len(recorder.Events); n != step.events {
			t.Errorf("%s: %d events, want %d", step.name, n, step.events)
		}
	}
	ps = NewProblems(recorder, pools, false)
	look(0, node("b", ""))
	if got := look(time.Hour, node("b", "")); got != "" || !ps.Due.IsZero() {
		t.Errorf("without gateTaint, or in mode Observe: %q", got)
	}
}

// TestNodeInTwoInstallations: a node of our pools with another installation's gate taint is a problem. Each pair of
// pool and installation has one problem.
func TestNodeInTwoInstallations(t *testing.T) {
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Installation: "blue", Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("type", "vm")}, {Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}}}})
	must.NoError(t, err)
	node := func(name, value string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: configv1.GateTaintKey, Value: value, Effect: v1.TaintEffectNoSchedule}}}}
	}
	for _, tc := range []struct {
		name      string
		user, aci []*v1.Node
		want      []string // how the problems begin
	}{
		{"our own", []*v1.Node{{}}, []*v1.Node{node("a", "blue")}, nil},
		{"another's", nil, []*v1.Node{node("b", "green"), node("a", "green"), node("0", "blue")}, []string{"pool aci: node a has the gate taint of another installation, green, so installation blue does not use the node. "}},
		{"in a regular pool", []*v1.Node{node("vm", "green")}, []*v1.Node{node("a", "red")}, []string{"pool aci: node a has the gate taint of another installation, red,", "pool user: node vm has the gate taint of another installation, green,"}},
	} {
		recorder := events.NewFakeRecorder(10)
		ps := NewProblems(recorder, pools, true)
		for range 2 {
			ps.current = nil
			ps.findOthers([][]*v1.Node{tc.user, tc.aci})
			ps.Report(klog.Background(), true)
		}
		got, _ := ps.List()
		if len(got) != len(tc.want) || len(recorder.Events) != len(tc.want) {
			t.Errorf("%s: %q and %d events, want %q", tc.name, got, len(recorder.Events), tc.want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], tc.want[i]) {
				t.Errorf("%s: %q, want %q", tc.name, got[i], tc.want[i])
			}
		}
	}
}

// TestVirtualNodes: a virtual node in a regular pool, and one without its label, are problems.
func TestVirtualNodes(t *testing.T) {
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "user", NodeSelector: matching("os", "linux")}, {Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}}}}))(t)
	ps := NewProblems(events.NewFakeRecorder(10), pools, true)
	node := func(labels map[string]string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: labels}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "virtual-kubelet.io/provider"}}}}
	}
	for _, tc := range []struct {
		labels map[string]string
		want   string
	}{
		{map[string]string{"type": "virtual-kubelet"}, ""},
		{map[string]string{"type": "virtual-kubelet", "os": "linux"}, "VirtualNodeInRegularPool"},
		{map[string]string{"os": "linux"}, "VirtualNodeInRegularPool"},
		{nil, "VirtualNodeLabelMissing"},
	} {
		byPool, _ := pools.Group([]*v1.Node{node(tc.labels)})
		ps.current = nil
		got := ""
		if ps.findVirtual(byPool); len(ps.current) > 0 {
			got = ps.current[0].code
		}
		if got != tc.want || len(ps.current) > 1 {
			t.Errorf("%v: %v, want %q", tc.labels, ps.current, tc.want)
		}
	}
}

// TestUntoleratedTaint: a taint of all nodes of a burst pool is a problem if neither the pool nor a waiting pod tolerates it.
func TestUntoleratedTaint(t *testing.T) {
	tolerates := func(keys ...string) (list []v1.Toleration) {
		for _, key := range keys {
			list = append(list, v1.Toleration{Key: key, Operator: v1.TolerationOpExists})
		}
		return list
	}
	taint := v1.Taint{Key: "team", Value: "a", Effect: v1.TaintEffectNoSchedule}
	tainted, free := nodegroups.NodeTemplate{Taints: []v1.Taint{taint}}, nodegroups.NodeTemplate{}
	for _, tc := range []struct {
		name    string
		nodes   []nodegroups.NodeTemplate
		pool    []v1.Toleration
		waiting [][]v1.Toleration
		found   bool
	}{
		{"nobody tolerates it", []nodegroups.NodeTemplate{tainted, tainted}, nil, [][]v1.Toleration{nil}, true},
		{"one of two pods tolerates it", []nodegroups.NodeTemplate{tainted}, tolerates("other"), [][]v1.Toleration{tolerates("team"), nil}, true},
		{"the pods tolerate it", []nodegroups.NodeTemplate{tainted}, nil, [][]v1.Toleration{tolerates("team")}, false},
		{"the pool tolerates it", []nodegroups.NodeTemplate{tainted}, tolerates("team"), [][]v1.Toleration{nil}, false},
		{"no pod waits", []nodegroups.NodeTemplate{tainted}, nil, nil, false},
		{"a node without it", []nodegroups.NodeTemplate{tainted, free}, nil, [][]v1.Toleration{nil}, false},
		{"no node", nil, nil, [][]v1.Toleration{nil}, false},
	} {
		pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{Tolerations: tc.pool}}}}))(t)
		ps := NewProblems(events.NewFakeRecorder(1), pools, true)
		ps.findUntolerated(func(matters func(*v1.Pod, string) bool) bool {
			return slices.ContainsFunc(tc.waiting, func(own []v1.Toleration) bool {
				return matters(&v1.Pod{Spec: v1.PodSpec{Tolerations: own}}, gate.ReasonNoRoom.Code)
			})
		}, &nodegroups.View{Pools: []nodegroups.Pool{{NodeTemplates: tc.nodes}}})
		messages, codes := ps.List()
		if codes["UntoleratedTaint"] == 1 != tc.found || tc.found && !strings.Contains(messages[0], "pool aci: pods wait that none of its nodes takes: the nodes have the taint team=a:NoSchedule,") {
			t.Errorf("%s: %q", tc.name, messages)
		}
	}
}
