package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestHelm: lint finds the workloads that the gate taint would lock out. In a namespace of its own, an upgrade
// to a wrong configuration, an upgrade to a changed one and a rollback leave no gap in scheduling. helm uninstall
// leaves no objects.
func TestHelm(t *testing.T) {
	const mine, chart = "mine", root + "/charts/pool-priority-scheduler"
	e := start(t, mine)
	pinned := suite.Deployment("pinned", 1, "1m", small, suite.ToleratesVirtualNode, suite.Selects("type", "virtual-kubelet"))
	pinned.Spec.Template.Spec.SchedulerName = ""
	e.Create(pinned)
	said := e.lint(true)
	if !strings.Contains(said, "pinned") {
		t.Errorf("lint does not mention the Deployment that is pinned to the virtual node:\n%s", said)
	}
	e.gone("pinned")
	e.lint(false)

	e.kubectl("create", "namespace", mine)
	e.kubectl("-n", mine, "wait", "--for=create", "--timeout=30s", "configmap/kube-root-ca.crt", "serviceaccount/default")
	before := e.Settled(*kubeconfig)
	does := func(verb, values string) {
		t.Helper()
		e.helm(verb, "pool-priority", chart, "--namespace", mine, "--wait", "--timeout=120s", "--values", values)
		e.rolledOut()
	}
	does("install", "values.yaml")
	end := e.Streamed(5*time.Second, small)
	if out := e.run("helm", "upgrade", "pool-priority", chart, "--namespace", mine, "--atomic", "--timeout=20s", "--values", e.edited("values.yaml", "limits: {pods: 200}", "limits: {podz: 3}")); !strings.Contains(out, "rolled back due to atomic") {
		t.Errorf("an upgrade with a wrong configuration: %s", out)
	}
	e.rolledOut()
	end()
	e.order(5)

	end = e.Streamed(5*time.Second, small)
	does("upgrade", e.edited("values.yaml", "limits: {pods: 200}", "limits: {pods: 3}")) // at most 3 pods on the virtual node
	end()
	free := e.free()
	e.Create(suite.Deployment("budget", int32(free["userpool"]+free["systempool"]+5), "1m", small))
	e.Lands(60*time.Second, "budget", map[string]int{"userpool": free["userpool"], "systempool": free["systempool"], "aci": 3, "": 2})
	e.gone("budget") // our own pods need its places on the VMs
	end = e.Streamed(5*time.Second, small)
	e.helm("rollback", "pool-priority", "--namespace", mine, "--timeout=120s", "--wait") // to the budget of 200
	e.rolledOut()
	end()
	e.order(5)

	e.logs.end()
	e.helm("uninstall", "pool-priority", "--namespace", mine)
	e.NothingLeft(*kubeconfig, before)
	e.kubectl("delete", "namespace", mine, "--timeout=60s")
}

// TestKustomize installs with kustomize. Its steps are fail-overs, a restart of the API server, and changes of the
// configuration and the pools.
func TestKustomize(t *testing.T) {
	e := start(t, devcluster.SchedulerNamespace)
	e.kubectl("apply", "-k", root+"/manifests/overlays/kind")
	e.rolledOut()
	for _, step := range []struct {
		name string
		test func(*env)
	}{
		{"order", func(e *env) { e.order(10) }},
		// If the leader did not release its lease, this would take more than ten seconds. Much of the time passes
		// before the kubelet ends the pod, because the five nodes of the cluster are starting pods.
		{"leader deleted", func(e *env) { e.failOver("deleted", 8*time.Second) }},
		{"leader killed", func(e *env) { e.failOver("killed", 15*time.Second) }},
		{"leader frozen", func(e *env) { e.failOver("frozen", 15*time.Second) }},
		{"API server restarts", (*env).restartAPIServer},
		{"beside the default scheduler", (*env).besideDefault},
		{"a configuration that is wrong", (*env).wrongConfiguration},
		{"a pool is added", (*env).addPool},
		{"a pool is drained and removed", (*env).removePool},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			sub := *e
			sub.TB = t
			step.test(&sub)
		}) {
			return // the next step would start in an unknown state
		}
	}
	e.logs.end()
	e.kubectl("delete", "-k", root+"/manifests/overlays/kind", "--ignore-not-found", "--timeout=60s") // the namespace, with all objects in it
	e.must(filepath.Join(*bin, "pool-priority-controller"), "cleanup")
	for _, object := range e.Everything(*kubeconfig) { // nodes and their objects have changed, so only our names count
		object := strings.ReplaceAll(object, "pool-priority-e2e", "") // the name of the cluster
		if strings.Contains(object, "pool-priority") || strings.Contains(object, "poolpriority.dev") {
			t.Errorf("there still is %s", object)
		}
	}
}

// lint runs lint with the configuration of the kind overlay. It must end with status 1 if finds is set, and else with 0.
func (e *env) lint(finds bool) string {
	e.Helper()
	config := root + "/manifests/overlays/kind/config.yaml"
	if !finds {
		return e.must(filepath.Join(*bin, "kubectl-pools"), "lint", "--filename="+config)
	}
	out := e.run("../kubectl-pools", "lint", "--filename="+config)
	if !strings.Contains(out, "exit status 1") {
		e.Errorf("lint ends without complaint:\n%s", out)
	}
	return out
}

// order: the pools fill in order, and empty in the reverse order.
func (e *env) order(burst int) {
	free := e.free()
	user, other := free["userpool"], free["systempool"]
	_, before := e.Referee.Judge()
	e.Create(suite.Deployment("order", int32(user+other+burst), "1m", small))
	e.runs(120*time.Second, "order", map[string]int{"userpool": user, "systempool": other, "aci": burst})
	e.Logf("%d pods: user %d, system %d, virtual node %d", user+other+burst, user, other, burst)
	e.Scale("order", int32(user+other))
	e.Lands(60*time.Second, "order", map[string]int{"userpool": user, "systempool": other})
	e.Scale("order", int32(user))
	e.Lands(60*time.Second, "order", map[string]int{"userpool": user})
	e.Scale("order", 1)
	e.Lands(60*time.Second, "order", map[string]int{"userpool": 1})
	e.gone("order")
	e.inOrder(before)
}

// inOrder waits until all bindings are old enough to be judged. It fails the test if the referee has seen violations
// that are not in before.
func (e *env) inOrder(before []string) {
	e.Helper()
	var violations []string
	e.Eventually(e.Referee.BindingLag+30*time.Second, func() string {
		_, violations = e.Referee.Judge()
		if n := e.Referee.Unjudged(); n > 0 {
			return fmt.Sprintf("%d bindings are not judged", n)
		}
		return ""
	})
	for _, v := range violations[len(before):] {
		e.Error(v)
	}
}

// budget is the limit of burst pods in the configurations below.
const budget = 175

// edited writes a changed copy of a file and returns its path. The changes are pairs of an old and a new text.
func (e *env) edited(file string, changes ...string) string {
	e.Helper()
	data := must.ReadFile(e, file)
	text := string(data)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			e.Fatalf("%s has no %q", file, changes[i])
		}
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	path := must.WriteFile(e, filepath.Base(file), []byte(text))
	return path
}

// configure applies a kustomization with a changed configuration of the kind overlay, as users write their own.
func (e *env) configure(changes ...string) {
	e.Helper()
	dir := filepath.Dir(e.edited(root+"/manifests/overlays/kind/config.yaml", changes...))
	manifests, err := filepath.Abs(root + "/manifests")
	must.NoError(e, err)
	if manifests, err = filepath.Rel(dir, manifests); err != nil {
		e.Fatal(err)
	}
	kustomization := fmt.Sprintf(`resources: [%[1]s/base]
components: [%[1]s/components/config]
images: [{name: pool-priority-scheduler, newName: localhost/pool-priority-scheduler, newTag: e2e}]
configMapGenerator: [{name: pool-priority-config, files: [config.yaml]}]
`, manifests)
	must.NoError(e, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
	e.kubectl("apply", "-k", dir)
}

// withBudget returns the change that limits the pods on the virtual node.
func withBudget(n int) []string {
	return []string{"limits: {pods: 200,", fmt.Sprintf("limits: {pods: %d,", n)}
}

// burst creates five pods more than fill the VMs and the budget, and waits until 20 of them are bound.
func (e *env) burst(app string) (total int) {
	e.Helper()
	for _, n := range e.free() {
		total += n
	}
	total += budget + 5
	e.Create(suite.Deployment(app, int32(total), "1m", small))
	e.Eventually(30*time.Second, func() string {
		if bound := total - e.Placed(app)[""]; bound < 20 {
			return fmt.Sprintf("%d pods are bound", bound)
		}
		return ""
	})
	return total
}

// all waits until all pods of the burst run, except the five above the budget. It does not check how the pods are
// divided between the VM pools, because our own pods use capacity there, and move.
func (e *env) all(timeout time.Duration, app string, total int) {
	e.Helper()
	e.Eventually(timeout, func() string {
		got := e.Placed(app)
		if got["aci"] != budget || got[""] != 5 || got["userpool"]+got["systempool"] != total-budget-5 {
			return fmt.Sprintf("pods of %s by pool: %v, want %d on VMs, %d in aci and 5 pending; %s", app, got, total-budget-5, budget, e.Said(app))
		}
		return ""
	})
	e.ready(timeout, app)
}

// failOver: the leader ends or freezes while 200 pods are scheduled. All pods within the budget run, in order, and the
// standby takes over in time.
func (e *env) failOver(how string, within time.Duration) {
	if how == "deleted" {
		e.configure(withBudget(budget)...)
		e.rolledOut()
	}
	_, before := e.Referee.Judge()
	name := e.leader()
	leader := must.Get(e.Client.CoreV1().Pods(e.system).Get(e.ctx, name, metav1.GetOptions{}))(e)
	total := e.burst(how)
	bound := total - e.Placed(how)[""]
	began := time.Now()
	switch how {
	case "deleted":
		// kubectl is not used, because its start takes a while on a busy machine.
		must.NoError(e, e.Client.CoreV1().Pods(e.system).Delete(e.ctx, name, metav1.DeleteOptions{}))
	case "killed":
		began = e.signalled("SIGKILL", leader)
	case "frozen":
		began = e.signalled("SIGSTOP", leader)
	}
	var took time.Duration
	e.Eventually(within+10*time.Second, func() string {
		now, since := e.leads()
		if now == "" || now == name {
			return fmt.Sprintf("%q leads", now)
		}
		took = since.Sub(began)
		return ""
	})
	if took > within {
		e.Errorf("the standby took over after %v, want at most %v", took, within)
	}
	e.all(120*time.Second, how, total)
	if how == "frozen" {
		e.signalled("SIGCONT", leader)
		time.Sleep(3 * time.Second)
		e.all(time.Second, how, total)
	}
	e.Logf("%s with %d of %d pods bound: the standby took over after %.1f s; all run after %.0f s: %v", how, bound, total, took.Seconds(), time.Since(began).Seconds(), e.Placed(how))
	e.rolledOut()
	e.gone(how)
	e.inOrder(before)
}

// signalled signals the scheduler in the pod and returns the time of the signal, because the request takes a while on a
// busy machine.
func (e *env) signalled(name string, pod *corev1.Pod) time.Time {
	e.Helper()
	out := strings.TrimSpace(e.signal(name, "pool-priority-scheduler", pod))
	ms, err := strconv.ParseInt(out, 10, 64)
	if err != nil {
		e.Fatalf("%s: %s", name, out)
	}
	return time.UnixMilli(ms)
}

// restartAPIServer: the API server is killed while 200 pods are scheduled, and comes back. All pods within the budget
// run, in order.
func (e *env) restartAPIServer() {
	servers, err := e.Client.CoreV1().Pods(metav1.NamespaceSystem).List(e.ctx, metav1.ListOptions{LabelSelector: "component=kube-apiserver"})
	if err != nil || len(servers.Items) != 1 {
		e.Fatalf("%d API servers; %v", len(servers.Items), err)
	}
	_, before := e.Referee.Judge()
	total := e.burst("restart")
	began := time.Now()
	e.logs.excuse(true)
	e.signal("SIGKILL", "kube-apiserver", &servers.Items[0])
	e.Eventually(120*time.Second, func() string {
		_, err := e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	down := time.Since(began)
	e.all(180*time.Second, "restart", total)
	pods := must.Get(e.Client.CoreV1().Pods(e.system).List(e.ctx, metav1.ListOptions{}))(e)
	restarts := map[string]int32{}
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			restarts[pod.Name] += c.RestartCount
		}
	}
	e.Logf("the API server was away for %.1f s; all pods run %.0f s after it ended; restarts of ours: %v", down.Seconds(), time.Since(began).Seconds(), restarts)
	e.rolledOut()
	e.gone("restart")
	e.inOrder(before)
	e.logs.excuse(false)
}

// besideDefault: the default scheduler places no pod on the virtual node, not even pods that tolerate the node's own
// taint. The default scheduler keeps its lease.
func (e *env) besideDefault() {
	lease := func() string {
		lease, err := e.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(e.ctx, "kube-scheduler", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil || lease.Spec.LeaseTransitions == nil {
			e.Fatalf("the default scheduler's lease: %v", err)
		}
		return fmt.Sprintf("%s, %d transitions", *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions)
	}
	before, free := lease(), e.free()
	_, violations := e.Referee.Judge()
	e.Create(suite.Deployment("ours", int32(free["userpool"]), "1m", small))
	theirs := suite.Deployment("theirs", 10, "1m", small, suite.ToleratesVirtualNode)
	theirs.Spec.Template.Spec.SchedulerName = ""
	e.Create(theirs)
	e.Eventually(60*time.Second, func() string {
		if ours, theirs := e.Placed("ours"), e.Placed("theirs"); ours[""]+theirs[""] > 0 || ours["aci"]+theirs["aci"] > 0 {
			return fmt.Sprintf("ours are in %v, the default scheduler's in %v", ours, theirs)
		}
		return ""
	})
	if after := lease(); after != before {
		e.Errorf("the default scheduler's lease was that of %s and is that of %s", before, after)
	}
	e.gone("ours", "theirs")
	e.inOrder(violations)
}

// wrongConfiguration: the new replicas do not become ready, and kubectl describe shows the wrong field. The running
// replicas schedule pods meanwhile.
func (e *env) wrongConfiguration() {
	leader := e.leader()
	e.configure("        burst:\n", "        burst:\n          maxPodz: 5\n")
	var broken string
	restarted := func(times int32) {
		e.Helper()
		e.Eventually(90*time.Second, func() string {
			pods, err := e.Client.CoreV1().Pods(e.system).List(e.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=pool-priority-scheduler"})
			if err != nil {
				return err.Error()
			}
			ready := 0
			broken = ""
			for _, pod := range pods.Items {
				for _, c := range pod.Status.Conditions {
					if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
						ready++
					}
				}
				for _, c := range pod.Status.ContainerStatuses {
					if c.RestartCount >= times && !c.Ready {
						broken = pod.Name
					}
				}
			}
			if ready != 2 || broken == "" {
				return fmt.Sprintf("%d replicas are ready, %q restarts", ready, broken)
			}
			return ""
		})
	}
	restarted(1)
	e.Create(suite.Deployment("meanwhile", 3, "1m", small))
	e.runs(60*time.Second, "meanwhile", map[string]int{"userpool": 3})
	e.gone("meanwhile")
	restarted(2)
	described := e.kubectl("-n", e.system, "describe", "pod", broken)
	if !strings.Contains(described, "maxPodz") {
		e.Errorf("kubectl describe does not name the field:\n%s", described)
	}
	for _, line := range strings.Split(described, "\n") {
		if strings.Contains(line, "maxPodz") {
			e.Logf("kubectl describe: %s", strings.TrimSpace(line))
		}
	}
	if now := e.leader(); now != leader {
		e.Errorf("%s led and %s leads", leader, now)
	}
	e.configure(withBudget(5)...)
	e.rolledOut()
}

// addPool: a pool that a change of the configuration adds to the list is used in its order.
func (e *env) addPool() {
	const system, user = "      - name: system\n        nodeSelector: {matchLabels: {kubernetes.azure.com/mode: system}}\n        fixed: {}\n", "      - name: user\n"
	for _, step := range []struct {
		app     string
		changes []string
		want    string
	}{
		{"without", []string{system, ""}, "userpool"},
		{"with", []string{system, "", user, system + user}, "systempool"},
	} {
		e.configure(append(step.changes, withBudget(5)...)...)
		e.rolledOut()
		e.Create(suite.Deployment(step.app, 3, "1m", small))
		e.runs(60*time.Second, step.app, map[string]int{step.want: 3})
		e.gone(step.app)
	}
	e.configure(withBudget(5)...)
	e.rolledOut()
}

// removePool: the system pool is drained and removed while pods are pending. Pods without a place wait for the budget,
// and run when it is raised.
func (e *env) removePool() {
	free := e.free()
	total := free["userpool"] + free["systempool"] + 5 + 5
	e.Create(suite.Deployment("remove", int32(total), "1m", small))
	e.Lands(60*time.Second, "remove", map[string]int{"userpool": free["userpool"], "systempool": free["systempool"], "aci": 5, "": 5})
	nodes := must.Get(e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{LabelSelector: devcluster.ModeLabel + "=system"}))(e)
	for _, node := range nodes.Items {
		e.kubectl("drain", node.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
	}
	for _, node := range nodes.Items {
		e.kubectl("delete", "node", node.Name)
	}
	e.Eventually(60*time.Second, func() string {
		got := e.Placed("remove")
		if got["systempool"] > 0 || got["aci"] != 5 || got[""] != total-got["userpool"]-5 {
			return fmt.Sprintf("%v of %d", got, total)
		}
		return ""
	})
	if said := e.Said("remove"); !strings.Contains(said, "budget") {
		e.Errorf("a pending pod is not told of the budget: %s", said)
	} else {
		e.Logf("pending: %s", said)
	}
	e.configure(withBudget(200)...)
	e.rolledOut()
	e.Eventually(60*time.Second, func() string {
		if got := e.Placed("remove"); got[""] > 0 {
			return fmt.Sprintf("%v", got)
		}
		return ""
	})
	e.Logf("after the pool is gone and the budget has grown: %v", e.Placed("remove"))
	e.gone("remove")
}
