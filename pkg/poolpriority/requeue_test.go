package poolpriority

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

func TestIsSchedulableAfterNodeChange(t *testing.T) {
	h := newHarness(t, aks(t))
	h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
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
			h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
			if tc.open {
				h.setCapacity(nodegroups.Full, nodegroups.Full)
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

func TestIsSchedulableAfterPodTolerationChange(t *testing.T) {
	h := newHarness(t, aks(t))
	for _, tc := range []struct {
		name           string
		oldPod, newPod any
		want           fwk.QueueingHint
		wantErr        bool
	}{
		{name: "not a pod", oldPod: "x", newPod: "y", want: fwk.Queue, wantErr: true},
		{name: "another pod", oldPod: pod("q").Obj(), newPod: pod("q").Toleration("x").Obj(), want: fwk.QueueSkip},
		{name: "the pod", oldPod: pod("p").Obj(), newPod: pod("p").Toleration("x").Obj(), want: fwk.Queue},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := h.plugin.isSchedulableAfterPodTolerationChange(h.logger, pod("p").Obj(), tc.oldPod, tc.newPod)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("hint = %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

// TestBurstAnnotationChanges: a held pod whose burst annotation changes is scheduled again at once, whether the
// informer delivers the change while the pod waits, or in the middle of the cycle that fails.
func TestBurstAnnotationChanges(t *testing.T) {
	for _, tc := range []struct {
		name     string
		inCycle  bool
		from, to string
		again    bool
	}{
		{name: "opted out no longer, while it waits", from: pool.BurstNever, again: true},
		{name: "opted out no longer, during the cycle", inCycle: true, from: pool.BurstNever, again: true},
		{name: "an annotation that does not matter, while it waits"},
		{name: "an annotation that does not matter, during the cycle", inCycle: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.addNodes(virtualNode("virtual"))
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			if !tc.again {
				h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
			}
			h.shared.Start(h.ctx.Done())
			h.shared.WaitForCacheSync(h.ctx.Done())
			h.watches("pods")
			pods, lister := h.client.CoreV1().Pods("default"), h.shared.Core().V1().Pods().Lister()
			p := pod("p").Annotation(pool.BurstAnnotation, tc.from).Obj()
			must.Do(t)(pods.Create(h.ctx, p, metav1.CreateOptions{}))
			info, err := compat.NextPod(h.logger, h.sched)
			must.NoError(t, err)
			change := func() {
				changed := pod("p").Annotation(pool.BurstAnnotation, tc.to).Annotation("changed", "yes").Obj()
				must.Do(t)(pods.Update(h.ctx, changed, metav1.UpdateOptions{}))
				must.Eventually(h, "the informer has the change", func() bool {
					p, err := lister.Pods("default").Get("p")
					return err == nil && p.Annotations["changed"] == "yes"
				})
			}
			if tc.inCycle {
				change()
			}
			state := framework.NewCycleState()
			_, err = compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, info.Pod)
			var fit *framework.FitError
			if !errors.As(err, &fit) {
				t.Fatalf("the pod has a place (%v)", err)
			}
			h.sched.Profiles[ourProfile].RunPostFilterPlugins(h.ctx, state, info.Pod, fit.Diagnosis.NodeToStatus)
			info.UnschedulablePlugins = fit.Diagnosis.UnschedulablePlugins
			must.NoError(t, compat.AddUnschedulable(h.logger, h.sched, info))
			if !tc.inCycle {
				change()
			}
			// UnschedulablePods reads without the queue's lock, PendingPods with it.
			waits := func() bool {
				_, summary := h.sched.SchedulingQueue.PendingPods()
				return strings.HasSuffix(summary, ":1") // the last number is that of unschedulable pods
			}
			tried := func() bool {
				h.plugin.gatekeeper.SendBatch(h.logger)
				return !waits()
			}
			if tc.again {
				must.Eventually(h, "the pod is scheduled again", tried)
			} else if time.Sleep(50 * time.Millisecond); tried() {
				t.Error("the pod is scheduled again")
			}
		})
	}
}
