package poolpriority

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
)

func pod(name string) *st.PodWrapper {
	return st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(ourProfile).
		Req(map[v1.ResourceName]string{"cpu": "1", "memory": "1Gi"})
}

// hold has the gatekeeper hold the pod, which listers then know.
func (h *harness) hold(p *v1.Pod, d *gate.Decision, promise *gatekeeper.Promise) {
	h.Helper()
	if err := h.shared.Core().V1().Pods().Informer().GetIndexer().Add(p); err != nil {
		h.Fatal(err)
	}
	h.plugin.gatekeeper.Hold(h.logger, p, d, promise)
}

func (h *harness) addNodes(nodes ...*st.NodeWrapper) {
	for _, n := range nodes {
		h.sched.Cache.AddNode(h.logger, n.Obj())
	}
}

func aks(t testing.TB) *schedconfig.KubeSchedulerConfiguration {
	return loadConfig(t, "../../manifests/overlays/aks/config.yaml")
}

// TestProfile starts schedulers whose profile puts the plugin where it cannot do its work.
func TestProfile(t *testing.T) {
	ours := schedconfig.Plugin{Name: Name}
	for _, tc := range []struct {
		name   string
		change func(*schedconfig.KubeSchedulerConfiguration, *schedconfig.Plugins)
		want   string // "" starts
	}{
		{"as shipped", func(*schedconfig.KubeSchedulerConfiguration, *schedconfig.Plugins) {}, ""},
		{"not last among the PreFilters", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.PreFilter.Enabled = []schedconfig.Plugin{ours}
		}, "must come after all: put it last under multiPoint, and enable neither under preFilter"},
		{"another one under preFilter", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.MultiPoint.Disabled = append(p.MultiPoint.Disabled, schedconfig.Plugin{Name: names.NodePorts})
			p.MultiPoint.Enabled = slices.DeleteFunc(p.MultiPoint.Enabled, func(p schedconfig.Plugin) bool { return p.Name == names.NodePorts })
			p.PreFilter.Enabled = []schedconfig.Plugin{{Name: names.NodePorts}}
			p.Filter.Enabled = append(p.Filter.Enabled, schedconfig.Plugin{Name: names.NodePorts})
		}, "PoolPriority comes before NodePorts among the preFilter plugins"},
		{"not first among the Filters", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Filter.Enabled = nil
		}, "must be first among the filter plugins: add filter: {enabled: [{name: PoolPriority}]}"},
		{"TaintToleration filters too", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Filter.Disabled = nil
		}, "TaintToleration is among the filter plugins, and PoolPriority asks it itself"},
		{"after preemption", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.PostFilter.Enabled = nil
		}, "must be first among the postFilter plugins"},
		{"DefaultBinder binds", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Bind.Disabled = nil
		}, "is not the first bind plugin, and pods get their deletion cost as they are bound: add bind: {disabled: [{name: DefaultBinder}]}"},
		{"preferred without its score", func(c *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Score.Disabled = append(p.Score.Disabled, ours)
			setOrder(c, "Preferred")
		}, "is not among the score plugins"},
		{"an extender that binds", func(c *schedconfig.KubeSchedulerConfiguration, _ *schedconfig.Plugins) {
			c.Extenders = []schedconfig.Extender{{URLPrefix: "http://127.0.0.1:1", BindVerb: "bind"}}
		}, "binds pods, which get no deletion cost then"},
		{"an extender that filters", func(c *schedconfig.KubeSchedulerConfiguration, _ *schedconfig.Plugins) {
			c.Extenders = []schedconfig.Extender{{URLPrefix: "http://127.0.0.1:1", FilterVerb: "filter"}}
		}, "filters nodes after the order was decided"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := aks(t)
			tc.change(cfg, cfg.Profiles[0].Plugins)
			_, err := tryHarness(t, cfg)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("did not start: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("started with %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestTwoProfiles: a scheduler that sets up a second profile with the plugin is told what to do instead.
func TestTwoProfiles(t *testing.T) {
	f := &Factory{plugins: map[string]*PoolPriority{"first": {}}}
	if _, err := f.New(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), `profile "first" configures the plugin PoolPriority already, and only one may`) {
		t.Errorf("New() = %v", err)
	}
}

func TestNoArguments(t *testing.T) {
	cfg := aks(t)
	cfg.Profiles[0].PluginConfig = slices.DeleteFunc(cfg.Profiles[0].PluginConfig, func(c schedconfig.PluginConfig) bool { return c.Name == Name })
	if _, err := tryHarness(t, cfg); err == nil || !strings.Contains(err.Error(), "no arguments of kind PoolPriorityArgs") {
		t.Errorf("started with %v", err)
	}
}

// TestGateInTheCycle goes through what a pod is told and where it lands while the gate is closed, open and opted out of.
func TestGateInTheCycle(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), virtualNode("virtual"))
	h.setCapacity(capacity.CanGrow, capacity.Full)
	if node, err := h.schedule(pod("first").Obj()); node != "user-1" {
		t.Fatalf("the first pod is on %q (%v), want the user node", node, err)
	}
	_, err := h.schedule(pod("held").Obj())
	if err == nil || !strings.Contains(err.Error(), gate.ReasonCanGrow.Sentence) {
		t.Errorf("the held pod was told %v, want %q", err, gate.ReasonCanGrow.Sentence)
	}
	h.setCapacity(capacity.Full, capacity.Growing)
	if _, err = h.schedule(pod("held-2").Obj()); err == nil || !strings.Contains(err.Error(), gate.ReasonGrowing.Sentence) {
		t.Errorf("the held pod was told %v, want %q", err, gate.ReasonGrowing.Sentence)
	}
	h.setCapacity(capacity.Full, capacity.Full)
	if node, err := h.schedule(pod("burst").Obj()); node != "virtual" {
		t.Errorf("the pod is on %q (%v), want the virtual node", node, err)
	}
	_, err = h.schedule(pod("opted-out").Annotation(gate.BurstAnnotation, gate.BurstNever).Obj())
	if err == nil || !strings.Contains(err.Error(), gate.ReasonOptOut.Sentence) {
		t.Errorf("the pod that opted out was told %v, want %q", err, gate.ReasonOptOut.Sentence)
	}
}

// TestTaintsOfBurstNodes looks past those taints that the pool's tolerations match, and no others.
func TestTaintsOfBurstNodes(t *testing.T) {
	h := newHarness(t, aks(t))
	extra := virtualNode("virtual").Obj()
	extra.Spec.Taints = append(extra.Spec.Taints, v1.Taint{Key: "maintenance", Effect: v1.TaintEffectNoSchedule})
	h.sched.Cache.AddNode(h.logger, extra)
	h.setCapacity(capacity.Full, capacity.Full)
	if _, err := h.schedule(pod("a").Obj()); err == nil || !strings.Contains(err.Error(), "untolerated taint") {
		t.Errorf("the pod was told %v, want an untolerated taint", err)
	}
	if node, err := h.schedule(pod("b").Toleration("maintenance").Obj()); node != "virtual" {
		t.Errorf("the pod that tolerates the other taint is on %q (%v)", node, err)
	}
}

func TestNominatedNodeOfAWorsePool(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("user-1"), systemNode("system-1"), virtualNode("virtual"))
	h.setCapacity(capacity.Full, capacity.Full)
	for _, nominated := range []string{"system-1", "virtual"} {
		p := pod("nominated-to-" + nominated).Obj()
		p.Status.NominatedNodeName = nominated
		if node, err := h.schedule(p); node != "user-1" {
			t.Errorf("the pod is on %q (%v), want the user node", node, err)
		}
	}
}

func TestPreferred(t *testing.T) {
	cfg := aks(t)
	setOrder(cfg, "Preferred")
	h := newHarness(t, cfg)
	h.addNodes(systemNode("system-1"), userNode("user-1"), st.MakeNode().Name("unlisted"), virtualNode("virtual"))
	h.setCapacity(capacity.CanGrow, capacity.Full)
	h.plugin.index.refresh(nil)
	for _, tc := range []struct {
		node *v1.Node
		want int64
	}{{userNode("u").Obj(), 100}, {systemNode("s").Obj(), 66}, {st.MakeNode().Name("x").Obj(), 33}, {virtualNode("v").Obj(), 0}} {
		info := framework.NewNodeInfo()
		info.SetNode(tc.node)
		if got, _ := h.plugin.Score(h.ctx, nil, nil, info); got != tc.want {
			t.Errorf("score of %s = %d, want %d", tc.node.Name, got, tc.want)
		}
	}
	// The gate holds in this mode too: two pods fill the VMs, and a third waits.
	for i := range 3 {
		p := pod(fmt.Sprint("large", i)).Obj()
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *userNode("u").Obj().Status.Allocatable.Cpu()
		node, err := h.schedule(p)
		if i < 2 && err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
		if i == 2 && (err == nil || !strings.Contains(err.Error(), gate.ReasonCanGrow.Sentence)) {
			t.Errorf("the third pod is on %q (%v) while the user pool can grow", node, err)
		}
	}
}

func notReady(n *v1.Node) *v1.Node {
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse}}
	return n
}

func unreported(n *v1.Node) *v1.Node {
	n.Status.Conditions = nil
	return n
}

// TestUnavailableBurstNodes are not used, even by pods that tolerate everything.
func TestUnavailableBurstNodes(t *testing.T) {
	for _, tc := range []struct {
		name string
		node *v1.Node
	}{
		{"not ready", notReady(virtualNode("virtual").Obj())},
		{"not reported yet", unreported(virtualNode("virtual").Obj())},
		{"cordoned", virtualNode("virtual").Unschedulable(true).Obj()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.sched.Cache.AddNode(h.logger, tc.node)
			h.setCapacity(capacity.Full, capacity.Full)
			p := pod("p").Obj()
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
			if _, err := h.schedule(p); err == nil || !strings.Contains(err.Error(), reasonUnavailable) {
				t.Errorf("the pod was told %v, want %q", err, reasonUnavailable)
			}
		})
	}
}

// TestBudget: no more pods than maxPods, counted in the snapshot, and one more when one ends.
func TestBudget(t *testing.T) {
	cfg := aks(t)
	for _, c := range cfg.Profiles[0].PluginConfig {
		if args, ok := c.Args.(*configv1.PoolPriorityArgs); ok {
			args.Pools[2].Burst.MaxPods = 3
		}
	}
	h := newHarness(t, cfg)
	h.addNodes(virtualNode("virtual-1"), virtualNode("virtual-2"))
	h.setCapacity(capacity.Full, capacity.Full)
	h.place(pod("by-others").Obj(), "virtual-1")
	for i := range 2 {
		if _, err := h.schedule(pod(fmt.Sprint("p", i)).Obj()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.schedule(pod("p3").Obj()); err == nil || !strings.Contains(err.Error(), gate.ReasonBudget.Sentence) {
		t.Errorf("the pod over the budget was told %v, want %q", err, gate.ReasonBudget.Sentence)
	}
	h.remove("by-others")
	if _, err := h.schedule(pod("p4").Obj()); err != nil {
		t.Errorf("the pod after the end of another: %v", err)
	}
}

// TestSchedulerIsBehind: while the snapshot lacks a node of a full pool that is known to be there, or has it as starting, the
// gate stays closed, and the pod is tried again soon.
func TestSchedulerIsBehind(t *testing.T) {
	h := newHarness(t, aks(t))
	tiny := map[v1.ResourceName]string{"cpu": "100m", "memory": "1Gi", "pods": "1"}
	ready := func(n *st.NodeWrapper) *st.NodeWrapper {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		return n
	}
	h.addNodes(ready(userNode("user-1").Capacity(tiny)), virtualNode("virtual"))
	known := func(nodes, starting int, age time.Duration) {
		view := &capacity.View{Pools: make([]capacity.Pool, h.plugin.pools.Len()), Built: time.Now().Add(-age)}
		for i := range h.plugin.pools.Regular() {
			view.Pools[i].State = capacity.Full
		}
		view.Pools[0].Nodes, view.Pools[0].Starting = nodes, starting
		h.plugin.gatekeeper.Assume(view)
	}
	known(2, 0, 0)
	_, err := h.schedule(pod("behind").Obj())
	if err == nil || !strings.Contains(err.Error(), gate.ReasonUnseen.Sentence) {
		t.Errorf("a node was not seen yet: %v, want %q", err, gate.ReasonUnseen.Sentence)
	}
	h.addNodes(userNode("user-2").Capacity(tiny)) // seen, and not yet that it is ready
	if _, err = h.schedule(pod("behind-2").Obj()); err == nil || !strings.Contains(err.Error(), gate.ReasonUnseen.Sentence) {
		t.Errorf("it was not seen yet that a node is ready: %v, want %q", err, gate.ReasonUnseen.Sentence)
	}
	known(2, 1, 0)
	if node, err := h.schedule(pod("not-behind").Obj()); node != "virtual" {
		t.Errorf("the pod is on %q (%v), want the virtual node", node, err)
	}
	known(3, 0, time.Minute)
	if node, err := h.schedule(pod("long-ago").Obj()); node != "virtual" {
		t.Errorf("a node that does not come for a minute: the pod is on %q (%v), want the virtual node", node, err)
	}
}

func TestIsSchedulableAfterNodeChange(t *testing.T) {
	h := newHarness(t, aks(t))
	h.setCapacity(capacity.CanGrow, capacity.Full)
	tainted := func(n *v1.Node) *v1.Node {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "x", Effect: v1.TaintEffectNoSchedule})
		return n
	}
	ofVirtualKubelet := userNode("n").Label("type", "virtual-kubelet").Obj()
	for _, tc := range []struct {
		name             string
		oldNode, newNode any
		open, held       bool
		want             fwk.QueueingHint
		wantErr          bool
	}{
		{name: "not a node", newNode: "x", want: fwk.Queue, wantErr: true},
		{name: "new node with a taint", newNode: tainted(userNode("n").Obj()), want: fwk.QueueSkip},
		{name: "new node of a virtual kubelet in no burst pool", newNode: ofVirtualKubelet, want: fwk.QueueSkip},
		{name: "new virtual node while the gate is closed, for a held pod", newNode: virtualNode("n").Obj(), held: true, want: fwk.QueueSkip},
		{name: "new virtual node while the gate is closed, for a pod that never came as far", newNode: virtualNode("n").Obj(), want: fwk.Queue},
		{name: "a taint came", oldNode: userNode("n").Obj(), newNode: tainted(userNode("n").Obj()), want: fwk.QueueSkip},
		{name: "nothing that matters changed", oldNode: userNode("n").Obj(), newNode: userNode("n").Label("a", "b").Obj(), want: fwk.QueueSkip},
		{name: "new node", newNode: userNode("n").Obj(), want: fwk.Queue},
		{name: "a taint went", oldNode: tainted(userNode("n").Obj()), newNode: userNode("n").Obj(), want: fwk.Queue},
		{name: "a node came into another pool", oldNode: st.MakeNode().Name("n").Obj(), newNode: userNode("n").Obj(), want: fwk.Queue},
		{name: "new virtual node while the gate is open", newNode: virtualNode("n").Obj(), open: true, want: fwk.Queue},
		{name: "new virtual node that is not ready", newNode: notReady(virtualNode("n").Obj()), open: true, want: fwk.QueueSkip},
		{name: "the virtual node became ready", oldNode: notReady(virtualNode("n").Obj()), newNode: virtualNode("n").Obj(), open: true, want: fwk.Queue},
		{name: "a VM became ready: its taint says so", oldNode: notReady(userNode("n").Obj()), newNode: userNode("n").Obj(), want: fwk.QueueSkip},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.setCapacity(capacity.CanGrow, capacity.Full)
			if tc.open {
				h.setCapacity(capacity.Full, capacity.Full)
			}
			p := pod("p").UID(tc.name).Obj()
			if tc.held {
				h.hold(p, &gate.Decision{Burst: make([]gate.Verdict, h.plugin.pools.Len())}, nil)
			}
			got, err := h.plugin.isSchedulableAfterNodeChange(h.logger, p, tc.oldNode, tc.newNode)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("hint = %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

func TestIsSchedulableAfterPodChange(t *testing.T) {
	h := newHarness(t, aks(t))
	for _, tc := range []struct {
		name           string
		oldPod, newPod any
		want           fwk.QueueingHint
		wantErr        bool
	}{
		{name: "not a pod", oldPod: "x", newPod: "y", want: fwk.Queue, wantErr: true},
		{name: "another pod", oldPod: pod("q").Obj(), newPod: pod("q").Toleration("x").Obj(), want: fwk.QueueSkip},
		{name: "a label", oldPod: pod("p").Obj(), newPod: pod("p").Label("a", "b").Obj(), want: fwk.QueueSkip},
		{name: "a toleration", oldPod: pod("p").Obj(), newPod: pod("p").Toleration("x").Obj(), want: fwk.Queue},
		{name: "no longer opted out", oldPod: pod("p").Annotation(gate.BurstAnnotation, gate.BurstNever).Obj(), newPod: pod("p").Obj(), want: fwk.Queue},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := h.plugin.isSchedulableAfterPodChange(h.logger, pod("p").Obj(), tc.oldPod, tc.newPod)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("hint = %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

func TestRequestsFit(t *testing.T) {
	free := requests{MilliCPU: 500, Memory: 100, Pods: 1}
	for _, tc := range []struct {
		name string
		pod  requests
		free requests
		want bool
	}{
		{"fits exactly", requests{500, 100, 1}, free, true},
		{"too much CPU", requests{501, 100, 1}, free, false},
		{"too much memory", requests{500, 101, 1}, free, false},
		{"no pod more", requests{0, 0, 1}, requests{500, 100, 0}, false},
		{"nothing asked of an overcommitted node", requests{0, 0, 1}, requests{-5, -5, 1}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.pod.fit(tc.free); got != tc.want {
				t.Errorf("fit() = %v, want %v", got, tc.want)
			}
		})
	}
}

// TestConfigurationsThatShip starts the in-process scheduler with each of them that needs no API server.
func TestConfigurationsThatShip(t *testing.T) {
	files, err := filepath.Glob("../../manifests/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), "name: Coscheduling") || strings.Contains(string(data), "name: NodeResourcesAllocatable") {
				return // started by the binary, in the integration tests: this harness has only our plugin
			}
			newHarness(t, loadConfig(t, file))
		})
	}
}

// TestObserve: a closed gate holds nothing back, and no taint is looked past.
func TestObserve(t *testing.T) {
	h := newHarness(t, loadConfig(t, "../../test/integration/testdata/observe.yaml"))
	h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), virtualNode("virtual"))
	h.setCapacity(capacity.CanGrow, capacity.CanGrow)
	tolerant := func(name string) *v1.Pod { return pod(name).Toleration("virtual-kubelet.io/provider").Obj() }
	for i, want := range []string{"user-1", "virtual", "virtual"} { // maxPods is 1
		if node, err := h.schedule(tolerant(strings.Repeat("x", i+1))); node != want {
			t.Errorf("pod %d is on %q (%v), want %q", i, node, err, want)
		}
	}
	if node, err := h.schedule(pod("plain").Obj()); err == nil {
		t.Errorf("a pod that does not tolerate the virtual node is on %q", node)
	}
	for _, uid := range []types.UID{"x", "xx", "xxx", "plain"} {
		if _, held := h.plugin.gatekeeper.Lookup(uid); held {
			t.Errorf("pod %s is held", uid)
		}
	}
}
