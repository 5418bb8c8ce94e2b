package poolpriority

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

func unreported(n *v1.Node) *v1.Node {
	n.Status.Conditions = nil
	return n
}

// TestTaintsOfBurstNodes looks past those taints that the pool's tolerations match, and no others.
func TestTaintsOfBurstNodes(t *testing.T) {
	h := newHarness(t, aks(t))
	extra := virtualNode("virtual").Obj()
	extra.Spec.Taints = append(extra.Spec.Taints, v1.Taint{Key: "maintenance", Effect: v1.TaintEffectNoSchedule})
	h.sched.Cache.AddNode(h.logger, extra)
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	if _, err := h.schedule(pod("a").Obj()); err == nil || !strings.Contains(err.Error(), "untolerated taint") {
		t.Errorf("the pod was told %v, want an untolerated taint", err)
	}
	if node, err := h.schedule(pod("b").Toleration("maintenance").Obj()); node != "virtual" {
		t.Errorf("the pod that tolerates the other taint is on %q (%v)", node, err)
	}
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
		{"without its label", virtualNode("virtual").Label("type", "").Obj()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.sched.Cache.AddNode(h.logger, tc.node)
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			p := pod("p").Obj()
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
			if _, err := h.schedule(p); err == nil || !strings.Contains(err.Error(), gate.ReasonNotAvailable.Sentence) {
				t.Errorf("the pod was told %v, want %q", err, gate.ReasonNotAvailable.Sentence)
			}
		})
	}
}

// TestNewBurstNodeWaitsForItsTaint: a burst node that was just made is not used before the controller has given it the
// gate taint, and nobody is preempted meanwhile; one that does not get it is used all the same.
func TestNewBurstNodeWaitsForItsTaint(t *testing.T) {
	gateTaint := v1.Taint{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: v1.TaintEffectNoSchedule}
	for _, tc := range []struct {
		name   string
		age    time.Duration
		taints []v1.Taint
		off    bool // no gate taint is kept
		alone  bool // no controller is there
		want   string
	}{
		{"new", 0, nil, false, false, ""},
		{"new, and no node has the taint", 0, nil, false, true, "virtual"},
		{"new, with the taint", 0, []v1.Taint{gateTaint}, false, false, "virtual"},
		{"new, with a taint of that key and another effect", 0, []v1.Taint{{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: v1.TaintEffectPreferNoSchedule}}, false, false, ""},
		{"new, and no taint is kept", 0, nil, true, false, "virtual"},
		{"never tainted", taintGrace, nil, false, false, "virtual"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.plugin.gateTaint = !tc.off
			h.plugin.gateTaintSeen.Store(!tc.alone)
			victims := h.countVictims()
			node := virtualNode("virtual").Obj()
			node.CreationTimestamp = metav1.NewTime(time.Now().Add(-tc.age))
			node.Spec.Taints = append(node.Spec.Taints, tc.taints...)
			h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), &st.NodeWrapper{Node: *node})
			h.place(pod("low").Obj(), "user-1")
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			p := pod("high").Priority(10).Obj()
			if tc.want == "" {
				if err := h.fail(p); !strings.Contains(err.Error(), gate.ReasonAwaitsGateTaint.Sentence) {
					t.Errorf("the pod was told %v", err)
				}
			} else if node, err := h.schedule(p); node != tc.want {
				t.Errorf("the pod is on %q (%v), want %s", node, err, tc.want)
			}
			if got := victims(); len(got) > 0 {
				t.Errorf("%v were preempted", got)
			}
		})
	}
}

// veto rejects pods in PreFilter with its code.
type veto struct{ code fwk.Code }

func (*veto) Name() string { return "Veto" }

func (v *veto) PreFilter(context.Context, fwk.CycleState, *v1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return nil, fwk.NewStatus(v.code)
}

func (*veto) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// TestOnlyMissingRoomCounts: holdLimit, and with it the wait for a scale-up, counts from a cycle in which the pod fits
// no node. It does not count after another plugin rejected the pod in PreFilter or in Permit.
func TestOnlyMissingRoomCounts(t *testing.T) {
	for _, tc := range []struct {
		name         string
		code         fwk.Code
		permit, want bool // permit: the pod was assumed, and is rejected in Permit
	}{
		{"no room", fwk.Success, false, true},
		{"quota", fwk.Unschedulable, false, false},
		{"permit", fwk.Success, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, other := aks(t), &veto{}
			pluginArgs(cfg).Capacity.HoldLimit = &metav1.Duration{Duration: time.Minute}
			plugins := &cfg.Profiles[0].Plugins.MultiPoint
			plugins.Enabled = append([]schedconfig.Plugin{{Name: "Veto"}}, plugins.Enabled...)
			h := must.Get(tryHarnessWith(t, cfg, frameworkruntime.Registry{"Veto": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return other, nil }}))(t)
			h.addNodes(virtualNode("virtual").Unschedulable(true), userNode("user-1"))
			h.place(pod("filler").Req(map[v1.ResourceName]string{"cpu": "3500m"}).Obj(), "user-1")
			h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
			p := pod("p").Req(map[v1.ResourceName]string{"cpu": "2"}).Obj()
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
			h.failed(pod("same").Req(map[v1.ResourceName]string{"cpu": "2"}).Obj()) // the second pod gets the cached diagnosis
			if other.code = tc.code; tc.permit {
				assumed := p.DeepCopy()
				assumed.Spec.NodeName = "user-1"
				must.NoError(t, h.shared.Core().V1().Pods().Informer().GetIndexer().Add(p))
				h.sched.Profiles[ourProfile].RunReservePluginsUnreserve(h.ctx, framework.NewCycleState(), assumed, "user-1")
			} else {
				_ = h.fail(p)
			}
			if decision := h.plugin.decide(p, gate.Wait{}); decision.Opens() != tc.want {
				t.Errorf("holdLimit counts: %v, want %v", decision.Opens(), tc.want)
			}
		})
	}
}
