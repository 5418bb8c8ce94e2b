package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestObserve: no pod is held, an old gate taint is removed, and pods that Enforce would hold are logged and counted.
// Pods that do not tolerate the virtual node are not placed there.
func TestObserve(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	// An earlier configuration with mode Enforce left a gate taint.
	controller := e.control(aksConfig)
	e.waitGated(true)
	controller.Stop()
	e.control("testdata/observe.yaml")
	e.waitGated(false)
	e.schedule("testdata/observe.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("tolerant", 12, "500m", suite.ToleratesVirtualNode))
	e.Lands(20*time.Second, "tolerant", map[string]int{"userpool": 4, "systempool": 4, "aci": 4})
	e.Create(suite.Deployment("plain", 1, "500m"))
	e.Lands(10*time.Second, "plain", map[string]int{"": 1})
	e.Keeps(3*time.Second, "plain", map[string]int{"": 1})
	e.logs("Observing: the gate would hold the pod back")
	e.hasMetrics(`pool_priority_gate_decisions_total{decision="closed",pool="aci",reason="PoolUnknown"}`, `pool_priority_held_pods{reason="PoolUnknown"} 0`)
	if e.isGated() {
		t.Error("the virtual node has the gate taint")
	}
	// A pod that the provider refused is not deleted.
	on := func(p corev1.Pod) bool { return p.Spec.NodeName == devcluster.VirtualNodeName }
	pods := e.Pods("tolerant")
	refused := &pods[slices.IndexFunc(pods, on)]
	refused.Status.Phase, refused.Status.Reason = corev1.PodPending, refusal.ReasonProviderFailed
	must.Do(t)(e.Client.CoreV1().Pods(namespace).UpdateStatus(e.ctx, refused, metav1.UpdateOptions{}))
	e.Stays(3*time.Second, func() string {
		if p, err := e.Client.CoreV1().Pods(namespace).Get(e.ctx, refused.Name, metav1.GetOptions{}); err != nil || p.UID != refused.UID || p.DeletionTimestamp != nil {
			return fmt.Sprintf("the refused pod is gone: %v", err)
		}
		return ""
	})
}

// TestObserveChangesNothing: with the rights of the overlay for mode Observe, the controller cannot write to nodes and
// pods, and does not try. An old gate taint stays, and an event says so.
func TestObserveChangesNothing(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.rbac = "testdata/observe-rights"
	controller := e.control("testdata/observe.yaml")
	e.schedule("testdata/observe.yaml", suite.UserTier(1), suite.VirtualTier())
	account := "system:serviceaccount:" + devcluster.SchedulerNamespace + ":" + devcluster.ControllerName
	for _, resource := range []string{"nodes", "nodes/status", "pods", "pods/status", "pods/eviction"} {
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			if out, err := e.kubectl("", "", "auth", "can-i", verb, resource, "--as="+account, "--all-namespaces"); err == nil || !strings.HasPrefix(out, "no") {
				t.Errorf("%s may %s %s: %s", account, verb, resource, out)
			}
		}
	}
	e.Create(suite.Deployment("web", 3, "100m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 3})
	if log := e.checkLogOf(controller); strings.Contains(string(log), "forbidden") {
		t.Error("it needs more than it has")
	}
	e.refused = true
	e.updateNode(devcluster.VirtualNodeName, func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "poolpriority.dev/gate", Value: "pool-priority-scheduler", Effect: corev1.TaintEffectNoSchedule})
	})
	if said := e.eventOn(metav1.NamespaceDefault, "Node", devcluster.VirtualNodeName, "GateTaintDenied"); !strings.Contains(said, "the gate taint stays and hides the node from other schedulers") {
		t.Errorf("the event says %q", said)
	}
}
