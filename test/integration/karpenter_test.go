package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const (
	karpenterConfig = root + "/manifests/overlays/karpenter/config.yaml"
	karpenterRBAC   = "testdata/karpenter"
)

// startKarpenter brings up a cluster with one system VM, the virtual node, and the real Karpenter. Its NodePool has
// nodes of one CPU, each for nine pods of 100m, and limits that allow two nodes.
func startKarpenter(t *testing.T, config string) *env {
	t.Helper()
	return startKarpenterWith(t, config, karpenterRBAC, "testdata/nodepool.yaml", instanceType("s-1", 1))
}

// instanceType returns an instance type with this number of CPUs and 8Gi for each. Its price is the number of CPUs.
func instanceType(name string, cpus int64) devcluster.InstanceType {
	it := devcluster.NewInstanceType(name, corev1.ResourceList{"cpu": *resource.NewQuantity(cpus, resource.DecimalSI), "memory": *resource.NewQuantity(cpus<<33, resource.BinarySI)})
	it.Offerings[0].Price = float64(cpus)
	return it
}

// startKarpenterWith brings up the cluster of startKarpenter with other rights, another NodePool and other instance
// types.
func startKarpenterWith(t *testing.T, config, rights, nodePool string, types ...devcluster.InstanceType) *env {
	t.Helper()
	e := start(t, nil, vms("systempool", "system", 1, 1, 1, 10))
	e.rbac, e.refused = rights, rights != karpenterRBAC
	e.karpenter = must.Get(e.StartKarpenter(e.ctx, types))(t)
	e.control(config)
	must.NoError(t, e.ApplyFile(e.ctx, nodePool))
	e.schedule(config, suite.UserTier(0), suite.SystemTier(1), suite.VirtualTier())
	return e
}

// TestKarpenter runs the manifest of an article (see TestArticles) with the real Karpenter. The pods tolerate the
// virtual node, the NodePool grows to its limits, and the other pods burst. When the load falls, no VM is drained onto
// the virtual node.
func TestKarpenter(t *testing.T) {
	t.Parallel()
	e := startKarpenter(t, karpenterConfig)
	e.waitGated(true)
	d := suite.Load(t, "testdata/burst-required.yaml")
	e.Create(d)
	e.Lands(60*time.Second, "burst-required", map[string]int{"agentpool": 1})
	e.Scale("burst-required", 20)
	e.Eventually(90*time.Second, func() string {
		if complaint := e.noPendingGateToleration(); complaint != "" {
			t.Fatal(complaint)
		}
		got := e.Placed("burst-required")
		if got["aci"] > 0 && got["agentpool"] < 18 {
			t.Fatalf("burst before the NodePool was full: %v", got)
		}
		if !suite.Equal(got, map[string]int{"agentpool": 18, "aci": 2}) {
			return fmt.Sprintf("%v; %s", got, e.Said("burst-required"))
		}
		return ""
	})
	if n := len(e.nodesOf("agentpool")); n != 2 {
		t.Errorf("%d nodes, want the 2 that the limits allow", n)
	}
	e.Scale("burst-required", 8)
	e.Eventually(60*time.Second, func() string {
		if got := e.Placed("burst-required"); got["agentpool"]+got["aci"] != 8 || len(e.nodesOf("agentpool")) != 1 {
			return fmt.Sprintf("%v on %d nodes", got, len(e.nodesOf("agentpool")))
		}
		return ""
	})
	burst := e.Placed("burst-required")["aci"]
	e.Stays(5*time.Second, func() string {
		if got := e.Placed("burst-required"); got["aci"] > burst {
			return fmt.Sprintf("there were %d pods on the virtual node, and now %v", burst, got)
		}
		return ""
	})
}

// TestKarpenterWithoutTheGateTaint shows the deadlock: if a pod tolerates the virtual node, Karpenter finds that the
// pod fits there, and orders no node. (The pods of the articles prefer or allow other nodes, and Karpenter tries those
// first.)
func TestKarpenterWithoutTheGateTaint(t *testing.T) {
	t.Parallel()
	e := startKarpenter(t, "testdata/karpenter-without-gate-taint.yaml")
	e.Create(suite.Deployment("web", 12, "250m", suite.ToleratesVirtualNode))
	e.Lands(20*time.Second, "web", map[string]int{"systempool": 8, "": 4})
	e.Stays(15*time.Second, func() string { // longer than a batch of the real Karpenter, which takes at most ten seconds
		if n := len(e.nodesOf("agentpool")); n != 0 {
			return fmt.Sprintf("the NodePool has %d nodes: it was thought that Karpenter would order none", n)
		}
		if got := e.Placed("web"); got["aci"] > 0 {
			return fmt.Sprintf("burst below the limits: %v", got)
		}
		return ""
	})
}

// TestNoKarpenter: in a cluster without Karpenter the scheduler starts at once and logs that Karpenter is missing. The
// gate opens after unknownGrace.
func TestNoKarpenter(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("systempool", "system", 1, 1, 1, 10))
	e.rbac = karpenterRBAC
	e.schedule(filepath.Join("testdata", "karpenter-no-grace.yaml"), suite.UserTier(0), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 12, "250m"))
	e.Lands(20*time.Second, "web", map[string]int{"systempool": 8, "": 4})
	e.logs("the cluster has no NodePools: Karpenter is not installed")
	e.Lands(20*time.Second, "web", map[string]int{"systempool": 8, "aci": 4})
}
