package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const emergency = root + "/manifests/emergency/kube-scheduler.yaml"

// TestEmergencyScheduler: while our scheduler is gone, pods that run stay, and new pods wait. Kubernetes' own scheduler
// with the configuration of manifests/emergency does nothing while our scheduler has the lease. When our scheduler is
// gone, it binds the pods to VMs, and not to the virtual node, even if they tolerate its own taint. When our scheduler
// is back, it waits for the lease.
func TestEmergencyScheduler(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	const config = "testdata/fixed.yaml"
	node := e.nodesOf("userpool")[0].Name
	e.control(config)
	e.schedule(config, suite.UserTier(1), suite.VirtualTier())
	e.waitGated(true)
	e.leastRights()
	e.Create(suite.Deployment("before", 1, "100m"))
	e.Lands(20*time.Second, "before", map[string]int{"userpool": 1})

	stock := must.Get(e.StartScheduler(e.ctx, filepath.Join(*bin, "tools", "kube-scheduler"), emergency, e.rbac))(t)
	t.Cleanup(func() { stock.Stop(); e.checkLogOf(stock) })
	ours := e.holder()
	e.Create(suite.Deployment("ours", 1, "100m"))
	e.Lands(20*time.Second, "ours", map[string]int{"userpool": 1})
	e.Stays(3*time.Second, func() string { return e.leads(ours) })
	if got, other := e.bound(e.scheduler, "ours"), e.bound(stock, ""); got != 1 || other != 0 {
		t.Errorf("our scheduler bound %d pods, Kubernetes' own %d", got, other)
	}

	e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = true }) // until the lease has passed to the other scheduler
	e.scheduler.Kill()
	e.Create(suite.Deployment("waits", 3, "800m", suite.ToleratesVirtualNode))
	theirs := e.newLeader(30*time.Second, ours)
	e.Eventually(20*time.Second, func() string { // one was tried, and the virtual node was refused
		if said := e.Said("waits"); !strings.Contains(said, "untolerated taint") {
			return said
		}
		return ""
	})
	// docs/emergency.md has this command, for namespaces that opt in by a policy.
	out, err := e.kubectl("", "", "-n", namespace, "delete", "pods", "--field-selector=spec.schedulerName=pool-priority-scheduler,spec.nodeName=", "--dry-run=server")
	if got := strings.Count(out, "deleted"); err != nil || got != 3 || strings.Contains(out, "before") {
		t.Errorf("the command lists %d pods, %v: %s", got, err, out)
	}
	e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	e.Lands(40*time.Second, "waits", map[string]int{"userpool": 2, "": 1})
	if got := e.bound(stock, "waits"); got != 2 {
		t.Errorf("Kubernetes' own scheduler bound %d pods", got)
	}
	e.Lands(time.Second, "before", map[string]int{"userpool": 1})

	must.NoError(t, e.scheduler.Restart())
	e.Stays(5*time.Second, func() string { return e.leads(theirs) })
	e.Lands(time.Second, "waits", map[string]int{"userpool": 2, "": 1})
	stock.Stop()
	e.Lands(40*time.Second, "waits", map[string]int{"userpool": 2, "aci": 1})
}

// bound counts the app's pods that the scheduler's log says it bound; all pods if app is "".
func (e *env) bound(scheduler *devcluster.Component, app string) int {
	e.Helper()
	return strings.Count(string(must.ReadFile(e, scheduler.Log())), `"Successfully bound pod to node" pod="`+namespace+"/"+app)
}

// holder returns the identity of the process that has our scheduler's lease, or "".
func (e *env) holder() string {
	lease, err := e.Client.CoordinationV1().Leases(devcluster.SchedulerNamespace).Get(e.ctx, devcluster.SchedulerName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// newLeader waits until a process other than before has our scheduler's lease, and returns its identity.
func (e *env) newLeader(within time.Duration, before string) (now string) {
	e.Helper()
	e.Eventually(within, func() string {
		if now = e.holder(); now == "" || now == before {
			return fmt.Sprintf("the lease is held by %q", now)
		}
		return ""
	})
	return now
}

// leads returns an error text if another process has the lease.
func (e *env) leads(want string) string {
	if got := e.holder(); got != want {
		return fmt.Sprintf("the lease is held by %q, want %q", got, want)
	}
	return ""
}

// TestEmergencyManifest: the Deployment of manifests/emergency uses the ServiceAccount, the lease and the scheduler's
// name of overlays/aks, and its file is where its command looks for it.
func TestEmergencyManifest(t *testing.T) {
	t.Parallel()
	objects, installed := kustomize(t, root+"/manifests/emergency"), kustomize(t, root+"/manifests/overlays/aks")
	pod := podsOf(t, objects)["Deployment pool-priority-system/pool-priority-emergency"].Spec
	if len(objects) != 2 || len(pod.Containers) != 1 {
		t.Fatalf("%d objects, with %d containers", len(objects), len(pod.Containers))
	}
	if installed["ServiceAccount pool-priority-system/"+pod.ServiceAccountName] == nil {
		t.Errorf("overlays/aks has no ServiceAccount %s", pod.ServiceAccountName)
	}
	file, _, _ := unstructured.NestedString(objects["ConfigMap pool-priority-system/"+pod.Volumes[0].ConfigMap.Name].Object, "data", "kube-scheduler.yaml")
	if want := "--config=" + pod.Containers[0].VolumeMounts[0].MountPath + "/kube-scheduler.yaml"; file == "" || pod.Containers[0].Command[1] != want {
		t.Errorf("the command is %v, want %s with the file %q", pod.Containers[0].Command, want, file)
	}
	names := func(text string) (names [2]any) {
		config := map[string]any{}
		must.NoError(t, yaml.Unmarshal([]byte(text), &config))
		names[0], _, _ = unstructured.NestedFieldNoCopy(config, "leaderElection", "resourceName")
		names[1] = config["profiles"].([]any)[0].(map[string]any)["schedulerName"]
		return names
	}
	if got, want := names(file), names(configOf(t, installed, devcluster.SchedulerName)); got != want || !strings.Contains(file, "enableProfiling: false") {
		t.Errorf("lease and scheduler: %v, want %v, and no profiling:\n%s", got, want, file)
	}
}
