package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"poolpriority.dev/scheduler/pkg/scalein"
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

// patchNodePool applies a merge patch to the NodePool.
func (e *env) patchNodePool(patch string) {
	e.Helper()
	must.Do(e)(e.kubectl("", "", "patch", "nodepool", "default", "--type=merge", "-p", patch))
}

// TestKarpenterLimitOfNodes: a NodePool at its limit of nodes is full at once, and Karpenter orders no further node.
func TestKarpenterLimitOfNodes(t *testing.T) {
	t.Parallel()
	e := startKarpenter(t, karpenterConfig)
	e.patchNodePool(`{"spec":{"limits":{"cpu":null,"nodes":"2"}}}`)
	e.waitGated(true)
	d := suite.Load(t, "testdata/burst-required.yaml")
	e.Create(d)
	e.Scale("burst-required", 18)
	e.Lands(60*time.Second, "burst-required", map[string]int{"agentpool": 18})
	e.Scale("burst-required", 20)
	e.Lands(30*time.Second, "burst-required", map[string]int{"agentpool": 18, "aci": 2}) // declineGrace is longer
	e.Stays(15*time.Second, func() string {
		if n := len(e.nodesOf("agentpool")); n != 2 {
			return fmt.Sprintf("%d nodes, want the 2 that the limits allow", n)
		}
		return ""
	})
}

// TestKarpenterNodesOfUserPools: AKS node auto-provisioning labels its nodes as the nodes of user pools, and excludes
// the cluster autoscaler. With the list of pools for the cluster autoscaler, no pod bursts while Karpenter adds VMs. At
// the limits, which the scheduler does not see, a pod waits 5 minutes.
func TestKarpenterNodesOfUserPools(t *testing.T) {
	t.Parallel()
	e := startKarpenter(t, "testdata/aks-no-grace.yaml")
	e.patchNodePool(`{"spec":{"template":{"metadata":{"labels":{"kubernetes.azure.com/mode":"user"}}}}}`)
	e.waitGated(true)
	e.Create(suite.Deployment("first", 1, "100m", suite.Selects("agentpool", "agentpool")))
	e.Lands(60*time.Second, "first", map[string]int{"agentpool": 1})
	if message := e.eventOn("default", "Node", "", "KarpenterNodes"); !strings.Contains(message, "karpenter: {nodePool: default}") {
		t.Errorf("the event says %q", message)
	}
	e.Create(suite.Load(t, "testdata/burst-required.yaml"))
	e.Scale("burst-required", 20)
	e.Lands(60*time.Second, "burst-required", map[string]int{"agentpool": 17, "": 3})
	e.Keeps(20*time.Second, "burst-required", map[string]int{"agentpool": 17, "": 3})
}

// TestKarpenterSetsCosts: a client with Karpenter's user agent overwrites the deletion costs of pods on VMs and removes
// one, as Karpenter 1.15 does with its feature gate PodDeletionCostManagement. The controller leaves the costs on VMs
// to it, also after a restart with another list of pools. A ReplicaSet still deletes the pods in the burst pool first.
func TestKarpenterSetsCosts(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.leastRights()
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	controller := e.control("testdata/fixed.yaml")
	e.waitGated(true)
	e.Create(suite.Deployment("web", 9, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "aci": 1})
	for _, node := range must.Get(e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{LabelSelector: "type!=virtual-kubelet"}))(t).Items {
		must.Do(t)(e.Client.CoreV1().Nodes().Patch(e.ctx, node.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"karpenter.sh/nodepool":"default"}}}`), metav1.PatchOptions{}))
	}
	config := rest.CopyConfig(e.Config)
	config.UserAgent = "karpenter/1.15.0"
	karpenter := must.Get(kubernetes.NewForConfig(config))(t)
	want, user := map[string]string{}, 0
	for _, p := range e.Pods("web") {
		want[p.Name] = p.Annotations[scalein.CostAnnotation]
		if strings.Contains(p.Spec.NodeName, "userpool") {
			cost := []string{`"-2"`, `"-1"`, `null`, `"2000"`}[user]
			user++
			want[p.Name] = strings.TrimPrefix(strings.Trim(cost, `"`), "null")
			must.Do(t)(karpenter.CoreV1().Pods(p.Namespace).Patch(e.ctx, p.Name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":`+cost+`}}}`), metav1.PatchOptions{}))
		}
	}
	has := func(pool string) { // the costs, and this pool on the user pool's VM
		t.Helper()
		e.Eventually(20*time.Second, func() string {
			for _, p := range e.Pods("web") {
				if got := p.Annotations[scalein.CostAnnotation]; got != want[p.Name] {
					return fmt.Sprintf("pod %s on %s has the cost %q, want %q", p.Name, p.Spec.NodeName, got, want[p.Name])
				}
				if got := p.Annotations[scalein.PoolAnnotation]; strings.Contains(p.Spec.NodeName, "userpool") && got != pool {
					return fmt.Sprintf("pod %s on %s is in pool %q, want %q", p.Name, p.Spec.NodeName, got, pool)
				}
			}
			return ""
		})
	}
	e.eventOn("default", "Pod", "", "DeletionCostsByKarpenter")
	has("user")
	controller.Stop()
	e.control("testdata/edited.yaml") // system first, and user has another name
	has("users")
	e.Stays(2*time.Second, func() string {
		if n, kept := len(e.Events("DeletionCostsByKarpenter")), e.Events("DeletionCostKept"); n > 2 || len(kept) > 0 {
			return fmt.Sprintf("%d events of two processes, and %v", n, kept)
		}
		return ""
	})
	e.Scale("web", 8)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4})
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
	e.logs("the cluster serves no NodePools of karpenter.sh/v1, which is needed")
	e.Lands(20*time.Second, "web", map[string]int{"systempool": 8, "aci": 4})
}
