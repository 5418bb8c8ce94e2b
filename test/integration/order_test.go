package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestPoolsFillInOrder: pods fill the existing nodes in order, then new VMs, then the virtual node. The order is never
// wrong.
func TestPoolsFillInOrder(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 1, 1, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	e.schedule(aksConfig, suite.UserTier(3), suite.SystemTier(2), suite.VirtualTier())
	e.Create(suite.Deployment("web", 1, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 1})
	e.Scale("web", 25)
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 12, "systempool": 8, "aci": 5})
	e.RightOrder(25)
}

// TestRefereeSeesWrongOrder runs the in-tree scheduler under our name. The referee, which all these tests use, must
// complain.
func TestRefereeSeesWrongOrder(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 2, 2, 4, 20), vms("systempool", "system", 2, 2, 2, 10))
	e.schedule("testdata/no-order.yaml", suite.UserTier(4), suite.SystemTier(2), suite.VirtualTier())
	e.Create(suite.Deployment("web", 8, "500m")) // spread over all four VMs
	e.Eventually(20*time.Second, func() string {
		if byTier, _ := e.Referee.Judge(); byTier[0]+byTier[1] < 8 {
			return fmt.Sprintf("placements judged: %v", byTier)
		}
		return ""
	})
	e.Create(suite.Deployment("burst", 40, "500m", suite.ToleratesVirtualNode))
	var violations []string
	e.Eventually(30*time.Second, func() string {
		var byTier []int
		if byTier, violations = e.Referee.Judge(); byTier[0]+byTier[1]+byTier[2] < 40 {
			return fmt.Sprintf("placements judged: %v", byTier)
		}
		return ""
	})
	for _, want := range []string{"went to pool system while node", "went to pool aci while pool user had 2 of 4 VMs"} {
		if !strings.Contains(strings.Join(violations, "\n"), want) {
			t.Errorf("the referee did not say %q: %q", want, violations)
		}
	}
}

// TestStaticAndFixedPools: the gate also opens for pools without an autoscaler.
func TestStaticAndFixedPools(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 2, 0, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	e.schedule(root+"/manifests/examples/static.yaml", suite.UserTier(3), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 14, "500m"))
	// There are two of three user nodes, so the gate stays closed.
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 8, "systempool": 4, "": 2})
	e.Keeps(3*time.Second, "web", map[string]int{"userpool": 8, "systempool": 4, "": 2})
	e.Told("web", "Unschedulable: ")
	e.Told("web", gate.ReasonCanGrow.Sentence)
	e.pool("userpool").Grow(1)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 10, "systempool": 4})
	e.Scale("web", 20)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 12, "systempool": 4, "aci": 4})
	e.RightOrder(20)
}

// TestScaleFromZero: a pool without nodes is neither Full nor Unknown, although no node shows which node group the pool
// has. The pool grows, and no pod bursts before that.
func TestScaleFromZero(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 0, 0, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.schedule("testdata/aks-no-grace.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	time.Sleep(2 * time.Second) // longer than the grace of an Unknown pool
	e.Create(suite.Deployment("web", 10, "500m"))
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "aci": 2})
	e.RightOrder(10)
	for _, p := range e.Pods("web") {
		if p.Spec.NodeName != devcluster.VirtualNodeName {
			continue
		}
		for _, n := range e.nodesOf("userpool") {
			if p.Status.StartTime.Before(&n.CreationTimestamp) {
				t.Errorf("pod %s ran on the virtual node before node %s came", p.Name, n.Name)
			}
		}
	}
}

// TestPinnedPods: 100 pods that select one agent pool stay in it, although other nodes have free capacity and the gate
// opens for other pods.
func TestPinnedPods(t *testing.T) {
	t.Parallel()
	apps := vms("appsnodepool", "user", 1, 1, 2, 20)
	system := vms("systempool", "system", 1, 1, 1, 10)
	system.Taints = []corev1.Taint{{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	e := start(t, fast(), apps, system)
	e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
	pinned := suite.Load(t, "testdata/pinned-pool.yaml")
	e.Create(pinned)
	e.Lands(60*time.Second, "pinned-pool", map[string]int{"appsnodepool": 100})

	// The two user nodes can run 220 pods in all: the 100 pinned pods and 120 of these 130 pods. The other ten pods
	// burst: they do not tolerate the taint of the system pool, so the system pool does not close the gate for them.
	e.Create(suite.Deployment("ordinary", 130, "1m"))
	e.Lands(90*time.Second, "ordinary", map[string]int{"appsnodepool": 120, "aci": 10})
	for _, n := range e.nodesOf("systempool") {
		for _, p := range append(e.Pods("pinned-pool"), e.Pods("ordinary")...) {
			if p.Spec.NodeName == n.Name {
				t.Errorf("pod %s is on the system node, whose taint it does not tolerate", p.Name)
			}
		}
	}
	e.Scale("pinned-pool", 101)
	e.staysFor(6, func() string {
		if got := e.Placed("pinned-pool"); got["appsnodepool"] != 100 || got["aci"] > 0 {
			return fmt.Sprintf("pinned pods by pool: %v", got)
		}
		return ""
	})
	e.RightOrder(230)
}

// TestGarbageInTheStatus: the scheduler keeps running, the pools are Unknown, and one log line says why.
func TestGarbageInTheStatus(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status"}, Data: map[string]string{"status": "\t{ garbage"}}
	must.Do(t)(e.Client.CoreV1().ConfigMaps("kube-system").Create(e.ctx, status, metav1.CreateOptions{}))
	e.schedule(aksConfig, suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 9, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "": 1})
	e.Told("web", gate.ReasonUnknown.Sentence)
	// The same status is written again, and no further line is logged.
	for i := range 3 {
		status.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/last-updated": fmt.Sprint(i)}
		must.Do(t)(e.Client.CoreV1().ConfigMaps("kube-system").Update(e.ctx, status, metav1.UpdateOptions{}))
		time.Sleep(300 * time.Millisecond)
	}
	log := must.ReadFile(t, e.scheduler.Log())
	if n := strings.Count(string(log), `reason="StatusUnreadable" object=`); n != 1 {
		t.Errorf("%d log lines about the problem, want 1", n)
	}
	event := e.eventOn("kube-system", "ConfigMap", "cluster-autoscaler-status", "StatusUnreadable")
	if want := "pool user, system: the cluster autoscaler's status cannot be read: "; !strings.HasPrefix(event, want) {
		t.Errorf("the event says %q, want %q…", event, want)
	}
	// A correct status opens the gate.
	e.groupsSay(groupStatus(e.pool("userpool").Group(), 1, 1, 1), groupStatus(e.pool("systempool").Group(), 1, 1, 1))
	repaired := time.Now()
	e.Lands(10*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "aci": 1})
	t.Logf("the held pod was on the virtual node %v after the status was repaired", time.Since(repaired).Round(time.Millisecond))
	e.RightOrder(9)
}

// TestBindingsDenied: an admission rule of somebody denies bindings to the VMs of the first pool. Pods get VMs of the next
// pool, or burst, and their conditions, the problem and the metric say why.
func TestBindingsDenied(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	const policy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: managed}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [pods/binding]}]}
  validations: [{expression: "!object.target.name.startsWith('aks-userpool-')", message: the pool is managed}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: managed}
spec: {policyName: managed, validationActions: [Deny]}
`
	if out, err := e.kubectl("", policy, "apply", "-f", "-"); err != nil {
		t.Fatal(err, out)
	}
	probe := must.Get(e.Client.CoreV1().Pods(namespace).Create(e.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: "web"}}}}, metav1.CreateOptions{}))(t)
	e.Eventually(60*time.Second, func() string {
		err := e.Client.CoreV1().Pods(namespace).Bind(e.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "probe", UID: probe.UID},
			Target: corev1.ObjectReference{Kind: "Node", Name: e.nodesOf("userpool")[0].Name}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "the pool is managed") {
			return fmt.Sprintf("the policy is not in effect: %v", err)
		}
		return ""
	})
	e.schedule(aksConfig)
	e.Create(suite.Deployment("web", 6, "500m"))
	e.Lands(60*time.Second, "web", map[string]int{"systempool": 4, "aci": 2})
	e.hasMetrics(`pool_priority_problem{code="BindingsDenied"} 1`)
	e.refused = true
}
