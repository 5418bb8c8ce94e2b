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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
)

func pod(name string) *st.PodWrapper {
	return st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(ourProfile).
		Req(map[v1.ResourceName]string{"cpu": "1", "memory": "1Gi"})
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
		}, "must come after all: put it last under multiPoint"},
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

// TestFirstFailure: the clock of a pod that waited for scheduling gates starts when it first fails, not when it was made.
func TestFirstFailure(t *testing.T) {
	h := newHeld()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	p := pod("p").Obj()
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonSchedulingGated, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
	h.note(p, now)
	p.Status.Conditions[0].Reason = v1.PodReasonUnschedulable // the API server keeps the time
	if got := h.since(p); !got.Equal(now) {
		t.Errorf("unschedulable since %v, want %v", got, now)
	}
}

func notReady(n *v1.Node) *v1.Node {
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse}}
	return n
}

// TestUnavailableBurstNodes are not used, even by pods that tolerate everything.
func TestUnavailableBurstNodes(t *testing.T) {
	for _, tc := range []struct {
		name string
		node *v1.Node
	}{
		{"not ready", notReady(virtualNode("virtual").Obj())},
		{"cordoned", virtualNode("virtual").Unschedulable(true).Obj()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.sched.Cache.AddNode(h.logger, tc.node)
			h.setCapacity(capacity.Full, capacity.Full)
			p := pod("p").Obj()
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
			if _, err := h.schedule(p); err == nil || !strings.Contains(err.Error(), ErrReasonUnavailable) {
				t.Errorf("the pod was told %v, want %q", err, ErrReasonUnavailable)
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

// TestHeldForTheBudget: a change of the view does not wake such pods, the end of a burst pod does.
func TestHeldForTheBudget(t *testing.T) {
	h := newHeld()
	p := pod("p").Obj()
	spent := gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonBudget}}}
	h.add(p, &spent, nil, time.Now())
	opened, _ := h.reconsider(false, time.Now(), func(*v1.Pod, time.Time, gate.Room) gate.Decision {
		return gate.Decision{Burst: []gate.Verdict{{Open: true}}}
	})
	if len(opened) != 0 {
		t.Errorf("woken by a decision that does not look at budgets: %v", opened)
	}
	if !h.waitsForBudget(p.UID) || h.waitsForBudget("other") {
		t.Error("the pod, and no other, waits for the budget")
	}
	closed := gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonCanGrow}}}
	h.add(p, &closed, nil, time.Now())
	if h.waitsForBudget(p.UID) {
		t.Error("the pod waits for the pools now")
	}
}

// TestHeldPodsAreWoken follows held pods through changes of the view and of time.
func TestHeldPodsAreWoken(t *testing.T) {
	h := newHeld()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed := gate.Decision{Burst: []gate.Verdict{{Open: false}}}
	a, b := pod("a").Obj(), pod("b").Annotation("open", "yes").Obj()
	h.add(a, &closed, nil, now)
	h.add(b, &closed, nil, now)
	decide := func(pod *v1.Pod, since time.Time, _ gate.Room) gate.Decision {
		d := gate.Decision{Burst: []gate.Verdict{{Open: pod.Annotations["open"] == "yes", Until: since.Add(time.Minute)}}}
		return d
	}
	opened, next := h.reconsider(false, now, decide)
	if len(opened) != 1 || opened["default/b"] == nil {
		t.Errorf("opened for %v, want only b", opened)
	}
	if !next.Equal(now.Add(time.Minute)) {
		t.Errorf("next look at %v, want %v", next, now.Add(time.Minute))
	}
	if opened, _ = h.reconsider(false, now, decide); len(opened) != 0 {
		t.Errorf("woken again without a change: %v", opened)
	}
	// Held once more, by a decision that was closed: woken once more.
	h.add(b, &closed, nil, now.Add(time.Hour))
	if opened, _ = h.reconsider(true, now, decide); len(opened) != 1 {
		t.Errorf("opened for %v, want b", opened)
	}
	if got := h.since(b); !got.Equal(now) {
		t.Errorf("unschedulable since %v, want since the first time: %v", got, now)
	}
	bound := b.DeepCopy()
	bound.Spec.NodeName = "node"
	h.update(bound)
	h.remove(a.UID)
	if len(h.pods)+len(h.firstFailed)+len(h.added) != 0 {
		t.Errorf("something is left of the pods: %+v", h)
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
		h.setCapacity(capacity.Full, capacity.Full)
		view := *h.plugin.gate.view.Load()
		view.Pools[0].Nodes, view.Pools[0].Starting, view.Built = nodes, starting, time.Now().Add(-age)
		h.plugin.gate.view.Store(&view)
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

	held := newHeld()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	held.add(pod("p").Obj(), &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonUnseen}}}, nil, now)
	open := func(*v1.Pod, time.Time, gate.Room) gate.Decision {
		return gate.Decision{Burst: []gate.Verdict{{Open: true}}}
	}
	if opened, next := held.reconsider(true, now, open); len(opened) != 0 || !next.Equal(now.Add(retryUnseen)) {
		t.Errorf("woken at once: %v, next look at %v", opened, next)
	}
	if opened, _ := held.reconsider(false, now.Add(retryUnseen), open); len(opened) != 1 {
		t.Error("not woken after retryUnseen")
	}
	if opened, _ := held.reconsider(false, now.Add(time.Hour), open); len(opened) != 0 {
		t.Error("woken again without being held again")
	}
}

// TestUntold: a held pod whose condition was never written is tried again, every retryUntold.
func TestUntold(t *testing.T) {
	h := newHeld()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed := gate.Decision{Burst: []gate.Verdict{{Open: false}}}
	told := pod("told").UID("told").Conditions([]v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(now)}}).Obj()
	h.add(told, &closed, nil, now)
	h.add(pod("untold").UID("untold").Obj(), &closed, nil, now)
	for _, tc := range []struct {
		after, next time.Duration
		want        int
	}{
		{0, retryUntold, 0},
		{retryUntold - 1, retryUntold, 0},
		{retryUntold, 3 * retryUntold, 1},
		{retryUntold + 1, 3 * retryUntold, 0},
		{3 * retryUntold, 7 * retryUntold, 1},
		{3*retryUntold + time.Hour, 3*retryUntold + time.Hour + 8*retryUntold, 1},
	} {
		pods, next := h.untold(now.Add(tc.after))
		if len(pods) != tc.want || tc.want == 1 && pods["default/untold"] == nil || !next.Equal(now.Add(tc.next)) {
			t.Errorf("after %v: %d pods, next look at %v; want %d, %v", tc.after, len(pods), next, tc.want, now.Add(tc.next))
		}
	}
	known := told.DeepCopy()
	known.UID, known.Name = "untold", "untold"
	h.update(known)
	if pods, next := h.untold(now.Add(time.Hour)); len(pods) != 0 || !next.IsZero() {
		t.Errorf("%d pods, next look at %v, when the API says it of all", len(pods), next)
	}
}

func TestUnschedulableSince(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	for _, tc := range []struct {
		name   string
		reason string
		status v1.ConditionStatus
		want   bool
	}{
		{"unschedulable", v1.PodReasonUnschedulable, v1.ConditionFalse, true},
		{"waits for scheduling gates", v1.PodReasonSchedulingGated, v1.ConditionFalse, false},
		{"scheduler error", v1.PodReasonSchedulerError, v1.ConditionFalse, false},
		{"scheduled", "", v1.ConditionTrue, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pod("p").Obj()
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: tc.status, Reason: tc.reason, LastTransitionTime: at}}
			if got := !unschedulableSince(p).IsZero(); got != tc.want {
				t.Errorf("known to be unschedulable: %v, want %v", got, tc.want)
			}
		})
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
			p := pod("p").Obj()
			h.plugin.gate.held.remove(p.UID)
			if tc.held {
				h.plugin.gate.held.add(p, &gate.Decision{Burst: []gate.Verdict{{}}}, nil, time.Now())
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
