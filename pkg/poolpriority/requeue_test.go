package poolpriority

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
)

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
