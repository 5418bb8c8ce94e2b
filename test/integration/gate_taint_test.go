package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// noPendingGateToleration returns an error text if a pod that is not bound tolerates the gate taint.
func (e *env) noPendingGateToleration() string {
	for _, p := range e.Pods("") {
		if p.Spec.NodeName == "" && slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == configv1.GateTaintKey }) {
			return "pending pod " + p.Name + " tolerates the gate taint"
		}
	}
	return ""
}

// TestArticles runs the manifests of the articles that README.md names, with only schedulerName changed. The pods of
// these articles tolerate the virtual node. With the gate taint, the pools grow to their maximum, and the remaining
// pods burst. Without the gate taint, the pools never grow.
func TestArticles(t *testing.T) {
	t.Parallel()
	agentpool := vms("agentpool", "user", 1, 1, 2, 20)
	agentpool.CPU = resource.MustParse("850m") // 8 pods
	system := vms("systempool", "system", 1, 1, 1, 10)
	t.Run("burst-required", func(t *testing.T) {
		t.Parallel()
		e := start(t, fast(), agentpool, system)
		e.control(aksConfig)
		e.waitGated(true)
		e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
		d := suite.Load(t, "testdata/burst-required.yaml")
		e.Create(d)
		e.Lands(20*time.Second, "burst-required", map[string]int{"agentpool": 1})
		e.Scale("burst-required", 17)
		e.Eventually(60*time.Second, func() string {
			if complaint := e.noPendingGateToleration(); complaint != "" {
				t.Fatal(complaint)
			}
			if got := e.Placed("burst-required"); !suite.Equal(got, map[string]int{"agentpool": 16, "aci": 1}) {
				return fmt.Sprintf("%v; %s", got, e.Said("burst-required"))
			}
			return ""
		})
		e.RightOrder(17)
		// Exactly the pods on the virtual node tolerate the gate taint.
		e.Eventually(10*time.Second, func() string {
			for _, p := range e.Pods("burst-required") {
				tolerates := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == configv1.GateTaintKey })
				if tolerates != (p.Spec.NodeName == devcluster.VirtualNodeName) {
					return fmt.Sprintf("pod %s on %s tolerates the gate taint: %v", p.Name, p.Spec.NodeName, tolerates)
				}
			}
			return ""
		})
	})
	t.Run("burst-required without the gate taint deadlocks", func(t *testing.T) {
		t.Parallel()
		e := start(t, fast(), agentpool, system)
		config := "testdata/aks-without-gate-taint.yaml"
		e.control(config)
		e.schedule(config, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
		d := suite.Load(t, "testdata/burst-required.yaml")
		*d.Spec.Replicas = 17
		e.Create(d)
		e.Lands(20*time.Second, "burst-required", map[string]int{"agentpool": 8, "": 9})
		e.staysFor(16, func() string {
			if n := e.pool("agentpool").Target(); n != 1 {
				return fmt.Sprintf("the pool grew to %d: it was thought that it would not", n)
			}
			if got := e.Placed("burst-required"); got["aci"] > 0 {
				return fmt.Sprintf("burst below the maximum: %v", got)
			}
			return ""
		})
		if e.isGated() {
			t.Error("the virtual node has the gate taint")
		}
	})
	t.Run("burst-preferred, and no VM is drained onto the virtual node", func(t *testing.T) {
		t.Parallel()
		options := fast()
		options.UnneededTime = 2 * time.Second
		e := start(t, options, vms("userpool", "user", 1, 1, 2, 20), system)
		e.control(aksConfig)
		e.waitGated(true)
		e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
		d := suite.Load(t, "testdata/burst-preferred.yaml")
		*d.Spec.Replicas = 30
		e.Create(d)
		e.Lands(60*time.Second, "burst-preferred", map[string]int{"userpool": 16, "systempool": 8, "aci": 6})
		e.RightOrder(30)
		e.Scale("burst-preferred", 8)
		e.Remain(60*time.Second, "burst-preferred", 8) // the burst pods are deleted first, and take their grace period of 30 s
		e.staysFor(16, func() string {
			if got := e.Placed("burst-preferred"); got["aci"] > 0 {
				return fmt.Sprintf("pods are on the virtual node: %v", got)
			}
			return ""
		})
	})
}

// TestGateTaintIsKept: if the gate taint is removed or the Node is created again, the controller adds the taint again.
// After cleanup --taint-only, the taint stays away.
func TestGateTaintIsKept(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.leastRights()
	controller := e.control(aksConfig)
	e.waitGated(true)
	e.updateNode(devcluster.VirtualNodeName, func(n *corev1.Node) { n.Spec.Taints = nil })
	e.waitGated(true)
	node := must.Get(e.Client.CoreV1().Nodes().Get(e.ctx, devcluster.VirtualNodeName, metav1.GetOptions{}))(t)
	must.NoError(t, e.Client.CoreV1().Nodes().Delete(e.ctx, node.Name, metav1.DeleteOptions{}))
	e.Eventually(10*time.Second, func() string {
		anew := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}}
		if _, err := e.Client.CoreV1().Nodes().Create(e.ctx, anew, metav1.CreateOptions{}); err != nil {
			if _, err := e.Client.CoreV1().Nodes().Get(e.ctx, node.Name, metav1.GetOptions{}); err != nil {
				return err.Error()
			}
		}
		return ""
	})
	e.waitGated(true)
	// A node that leaves the burst pool loses the taint.
	e.updateNode(devcluster.VirtualNodeName, func(n *corev1.Node) { n.Labels["type"] = "metal" })
	e.waitGated(false)
	e.updateNode(devcluster.VirtualNodeName, func(n *corev1.Node) { n.Labels["type"] = "virtual-kubelet" })
	e.waitGated(true)

	// The controller ends 3 s later. Until then, it adds the taint again.
	time.AfterFunc(3*time.Second, controller.Stop)
	e.cleanUp("--taint-only")
	<-controller.Done()
	if e.isGated() {
		t.Error("the taint is there after cleanup --taint-only")
	}
}

// TestGateTaintDenied: if an admission policy denies the controller to set the gate taint, as AKS's deployment
// safeguards may, lint, the controller and the scheduler report it. The controller sets the taint once the
// policy is gone.
func TestGateTaintDenied(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.refused = true
	must.NoError(t, e.ApplyFile(e.ctx, "testdata/deny-node-edits.yaml"))
	must.NoError(t, e.Apply(e.ctx, e.rbac))
	account := "system:serviceaccount:" + devcluster.SchedulerNamespace + ":" + devcluster.ControllerName
	e.Eventually(30*time.Second, func() string { // the policy takes effect after a while
		out := e.pools("lint", "--filename="+aksConfig)
		for _, want := range []string{account + " may not put the gate taint on node " + devcluster.VirtualNodeName, "nodes are edited by their pool", "exempt the controller's ServiceAccount", "ERROR    GateTaintDenied", "(exit status 1)"} {
			if !strings.Contains(out, want) {
				return fmt.Sprintf("no %q: %s", want, out)
			}
		}
		return ""
	})
	controller := e.control(aksConfig)
	e.schedule(aksConfig, suite.UserTier(1), suite.VirtualTier())
	said := e.eventOn(metav1.NamespaceDefault, "Node", devcluster.VirtualNodeName, "GateTaintDenied")
	for _, want := range []string{"nodes are edited by their pool", "exempt the controller's ServiceAccount"} {
		if !strings.Contains(said, want) {
			t.Errorf("the event says %q, not %q", said, want)
		}
	}
	notGated := func() string {
		state, err := e.published()
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(strings.Join(state.View.Problems, "\n"), "the gate taint poolpriority.dev/gate has been missing on node "+devcluster.VirtualNodeName) {
			return fmt.Sprintf("published problems: %q", state.View.Problems)
		}
		return ""
	}
	e.Eventually(60*time.Second, notGated)
	e.eventOn(metav1.NamespaceDefault, "Node", devcluster.VirtualNodeName, "GateTaintMissing")
	if n := strings.Count(string(e.checkLogOf(controller)), "The controller may not change the gate taint of a node"); n < 1 || n > 5 {
		t.Errorf("the controller's log says %d times that it is denied", n)
	}
	must.NoError(t, e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(e.ctx, "deny-node-edits", metav1.DeleteOptions{}))
	e.Eventually(120*time.Second, func() string {
		if !e.isGated() {
			return "the virtual node has no gate taint"
		}
		if notGated() == "" {
			return "the problem is still published"
		}
		return ""
	})
}
