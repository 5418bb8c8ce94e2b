package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// noneBursts waits until the pods are placed as wanted. It fails the test if one of them is on the virtual node before
// that.
func (e *env) noneBursts(timeout time.Duration, app string, want map[string]int) {
	e.Helper()
	e.Eventually(timeout, func() string {
		got := e.Placed(app)
		if got["aci"] > 0 {
			e.Fatalf("burst while a pool can grow: %v; the targets are %s", got, e.targets())
		}
		if !suite.Equal(got, want) {
			return fmt.Sprintf("%v, want %v; %s", got, want, e.Said(app))
		}
		return ""
	})
}

// targets returns the target sizes of the user and the system pool.
func (e *env) targets() string {
	return fmt.Sprintf("%d %d", e.pool("userpool").Target(), e.pool("systempool").Target())
}

// tainted returns "" if want nodes have the taint of nodes that are about to be removed. Otherwise it returns an error
// text.
func (e *env) tainted(want int) string {
	e.Helper()
	n := 0
	for _, node := range append(e.nodesOf("userpool"), e.nodesOf("systempool")...) {
		if autoscaler.HasTaint(&node, autoscaler.ToBeDeletedTaint) {
			n++
		}
	}
	if n != want {
		return fmt.Sprintf("%d nodes are about to be removed, not %d", n, want)
	}
	return ""
}

// TestGateAtScaleIn is the recorded run H with our scheduler. A spike of pods comes during a scale-in, when the VMs are
// deleted and the autoscaler's status says "at max". No pod bursts, because the pools can grow once the VMs are gone.
func TestGateAtScaleIn(t *testing.T) {
	t.Parallel()
	e := start(t, &devcluster.AutoscalerOptions{Interval: time.Second, UnneededTime: 3 * time.Second, DelayAfterAdd: time.Second, DeleteDelay: 2 * time.Second},
		vms("userpool", "user", 0, 0, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	e.schedule(aksConfig, suite.UserTier(3), suite.SystemTier(2), suite.VirtualTier())
	all := map[string]int{"userpool": 3, "systempool": 2}
	e.Create(suite.Deployment("web", 5, "1500m"))
	e.noneBursts(30*time.Second, "web", all)
	// If a pod is deleted before KWOK holds the lease of the pod's node, KWOK may never end the pod.
	e.Eventually(20*time.Second, func() string { return e.notReady("web") })
	e.Scale("web", 0)
	e.Eventually(30*time.Second, func() string { return e.tainted(4) })
	e.Eventually(10*time.Second, func() string {
		if got := e.targets(); got != "0 1" {
			return "the targets are " + got
		}
		return ""
	})
	e.Scale("web", 5)
	e.noneBursts(40*time.Second, "web", all)
}

// eventLoop is the time between two loops of the autoscaler in tests of its events. A pod that an event declines bursts
// within soon. Without an event, it waits for declineGrace, 60 s, and four loops.
const eventLoop, soon = 3 * time.Second, 2*eventLoop + 5*time.Second

// taintedPool returns a pool without nodes, whose taint is not known to the scheduler.
func taintedPool(name string) devcluster.Pool {
	p := vms(name, "user", 0, 0, 4, 30)
	p.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
	return p
}

// held waits until this number of pods of the namespace are unschedulable, and returns them.
func (e *env) held(namespace string, n int) (held []corev1.Pod) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		held = nil
		for _, p := range must.Get(e.Client.CoreV1().Pods(namespace).List(e.ctx, metav1.ListOptions{}))(e).Items {
			if !gate.UnschedulableSince(&p).IsZero() {
				held = append(held, p)
			}
		}
		if len(held) != n {
			return fmt.Sprintf("%d pods are unschedulable, want %d", len(held), n)
		}
		return ""
	})
	return held
}

// TestGateByEvent: VMs are full, and the only group that can grow is tainted and never had a node. The autoscaler's event
// on a pod lets the pod burst within two loops. (In TestForgedEvents, pods without an event wait for declineGrace.)
func TestGateByEvent(t *testing.T) {
	t.Parallel()
	e := start(t, &devcluster.AutoscalerOptions{Interval: eventLoop}, taintedPool("gpupool"), vms("userpool", "user", 0, 0, 2, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("full", 3, "1500m"))
	e.Lands(40*time.Second, "full", map[string]int{"userpool": 2, "systempool": 1})
	time.Sleep(2 * eventLoop) // the status shows that the VMs have come
	e.Create(suite.Deployment("plain", 1, "1500m"))
	e.Lands(soon, "plain", map[string]int{"aci": 1})
}
