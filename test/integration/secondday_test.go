package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

// stuck waits until a new replica of the scheduler has ended and says the text, while the old ones are ready.
func (k *kubelet) stuck(text string) {
	k.Helper()
	k.Eventually(40*time.Second, func() string {
		ready, said := 0, ""
		for _, pod := range k.ofScheduler() {
			if len(pod.Status.ContainerStatuses) == 0 {
				continue
			}
			c := pod.Status.ContainerStatuses[0]
			if c.Ready {
				ready++
			} else if ended := c.LastTerminationState.Terminated; ended != nil {
				said = ended.Message
			}
		}
		if ready != 2 || !strings.Contains(said, text) {
			return fmt.Sprintf("%d replicas are ready, and what ended says %q", ready, said)
		}
		return ""
	})
}

// replaced deletes a ready pod of the scheduler, and waits until the ReplicaSet of that has made another, which is ready.
func (k *kubelet) replaced() {
	k.Helper()
	var pod *corev1.Pod
	for _, p := range k.ofScheduler() {
		if c := p.Status.ContainerStatuses; len(c) == 1 && c[0].Ready {
			pod = &p
		}
	}
	if pod == nil {
		k.Fatal("no replica is ready")
	}
	suite.NoError(k, k.Client.CoreV1().Pods(k.namespace).Delete(k.ctx, pod.Name, metav1.DeleteOptions{}))
	k.Eventually(30*time.Second, func() string {
		for _, p := range k.ofScheduler() {
			if c := p.Status.ContainerStatuses; p.Name != pod.Name && p.CreationTimestamp.After(pod.CreationTimestamp.Time) && len(c) == 1 && c[0].Ready &&
				p.Labels["pod-template-hash"] == pod.Labels["pod-template-hash"] {
				return ""
			}
		}
		return "the pod that was deleted is not replaced"
	})
}

// budgetIn returns the burst pool's limit in the configuration that the scheduler of the namespace is to have.
func (e *env) budgetIn(namespace string) string {
	e.Helper()
	d, err := e.Client.AppsV1().Deployments(namespace).Get(e.ctx, devcluster.SchedulerName, metav1.GetOptions{})
	suite.NoError(e, err)
	_, args, err := configv1.Load([]byte(d.Spec.Template.Annotations[configv1.ConfigAnnotation]))
	suite.NoError(e, err)
	return strconv.Itoa(int(args.Pools[len(args.Pools)-1].Burst.Budget().Pods))
}

// cleanUp runs the command that takes away what an installation leaves.
func (e *env) cleanUp(args ...string) {
	e.Helper()
	if out, err := exec.Command(filepath.Join(*bin, devcluster.ControllerName), append([]string{"cleanup", "--kubeconfig=" + e.KubeConfig()}, args...)...).CombinedOutput(); err != nil {
		e.Errorf("cleanup: %v: %s", err, out)
	}
}

// secondDay is a cluster with a Deployment of which one pod will burst, and the namespaces.
func secondDay(t *testing.T, namespaces ...string) *env {
	e := start(t, nil, vms("userpool", "user", 2, 2, 2, 20), vms("systempool", "system", 1, 1, 1, 10))
	for _, name := range namespaces {
		suite.Must(t)(e.Client.CoreV1().Namespaces().Create(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	}
	e.Create(suite.Deployment("web", 7, "900m"))
	return e
}

// landed waits until the pods of web are where they belong, and the one that burst has its tolerations.
func (e *env) landed() {
	e.Helper()
	e.Lands(30*time.Second, "web", map[string]int{"userpool": 4, "systempool": 2, "aci": 1})
	e.Eventually(20*time.Second, func() string {
		for _, pod := range e.Pods("web") {
			if pod.Spec.NodeName == devcluster.VirtualNodeName && !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == configv1.GateTaintKey }) {
				return fmt.Sprint(pod.Spec.Tolerations)
			}
		}
		return ""
	})
}

// TestSecondDay is Helm's, in a namespace of one's own: a wrong configuration, a changed one, and back, while pods are scheduled all the time. In the
// end nothing is left, also where the Job that cleans up cannot run.
func TestSecondDay(t *testing.T) {
	t.Parallel()
	const mine = "mine"
	e := secondDay(t, mine)
	helm := func(args ...string) (string, error) {
		t.Helper()
		return tool(t, "helm", append([]string{"--kubeconfig=" + e.KubeConfig(), "--namespace=" + mine}, args...)...)
	}
	does := func(args ...string) string {
		t.Helper()
		out, err := helm(args...)
		if err != nil || strings.Contains(out, "arning") {
			t.Fatalf("helm %v: %v: %s", args, err, out)
		}
		return out
	}
	const file, limits = root + "/test/e2e/values.yaml", "limits: {pods: 200}"
	values := "--values=" + file
	changed := func(by string) string {
		t.Helper()
		data, err := os.ReadFile(file)
		suite.NoError(t, err)
		path := filepath.Join(t.TempDir(), "values.yaml")
		suite.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(data), limits, by, 1)), 0o600))
		return "--values=" + path
	}
	budget := func(want string) {
		t.Helper()
		if got := e.budgetIn(mine); got != want {
			t.Errorf("the configuration has a budget of %s, want %s", got, want)
		}
	}
	before := e.Settled(e.KubeConfig())
	k := e.kubelet(mine)

	notes := does("install", "pool-priority", chart, values, "--wait", "--timeout=60s")
	for _, want := range []string{"schedulerName: pool-priority-scheduler", "rollout status deployment/pool-priority-scheduler", "helm get manifest pool-priority -n mine"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in the notes:\n%s", want, notes)
		}
	}
	k.rolledOut("pool-priority")
	e.landed()
	budget("200")
	end := e.Streamed(10 * time.Second)

	// A wrong configuration is taken back by itself.
	out, err := helm("upgrade", "pool-priority", chart, changed("limits: {podz: 3}"), "--atomic", "--timeout=15s")
	if err == nil || !strings.Contains(out, "has been rolled back due to atomic being set") {
		t.Errorf("an upgrade with a wrong configuration: %v: %s", err, out)
	}
	k.rolledOut("pool-priority")
	budget("200")
	// Without that it is stuck, and a replica that has to move starts with the configuration that it had.
	does("upgrade", "pool-priority", chart, changed("limits: {podz: 4}"))
	k.stuck("podz")
	k.replaced()
	does("rollback", "pool-priority", "--wait", "--timeout=60s")
	k.rolledOut("pool-priority")
	budget("200")

	does("upgrade", "pool-priority", chart, changed("limits: {pods: 3}"), "--wait", "--timeout=60s")
	budget("3")
	does("rollback", "pool-priority", "--wait", "--timeout=60s")
	k.rolledOut("pool-priority")
	budget("200")
	end()
	k.clean()
	does("uninstall", "pool-priority", "--timeout=60s")
	e.NothingLeft(e.KubeConfig(), before)

	// The Job cannot run: its rights go all the same, and the command does the rest.
	does("install", "pool-priority", chart, values, "--wait", "--timeout=60s")
	e.waitGated(true)
	e.Eventually(20*time.Second, func() string {
		for _, pod := range e.Pods("web") {
			if pod.Annotations[scalein.CostAnnotation] == "" {
				return "pod " + pod.Name + " has no deletion cost"
			}
		}
		return ""
	})
	k.end()
	if out, err := helm("uninstall", "pool-priority", "--timeout=5s"); err == nil {
		t.Errorf("an uninstallation whose Job does not run: %s", out)
	}
	for _, object := range e.Everything(e.KubeConfig()) {
		if kind, _, _ := strings.Cut(object, " "); strings.Contains(object, "pool-priority-cleanup") && kind != "jobs.batch" && kind != "pods" {
			t.Errorf("after an uninstallation that failed there is %s", object)
		}
	}
	background := metav1.DeletePropagationBackground
	suite.NoError(t, e.Client.BatchV1().Jobs(mine).Delete(e.ctx, "pool-priority-cleanup", metav1.DeleteOptions{PropagationPolicy: &background}))
	e.cleanUp("--namespace=" + mine)
	e.NothingLeft(e.KubeConfig(), before)
}

// TestSecondDayOfKustomize is a wrong configuration with which a replica has to move, back, and away.
func TestSecondDayOfKustomize(t *testing.T) {
	t.Parallel()
	e := secondDay(t)
	kubectl := func(args ...string) {
		t.Helper()
		out, err := tool(t, "kubectl", append([]string{"--kubeconfig=" + e.KubeConfig()}, args...)...)
		if err != nil || strings.Contains(out, "Warning") {
			t.Fatalf("kubectl %v: %v: %s", args, err, out)
		}
	}
	before := e.Settled(e.KubeConfig())
	k := e.kubelet(devcluster.SchedulerNamespace)
	const overlay = root + "/manifests/overlays/kind"
	kubectl("apply", "-k", overlay)
	k.rolledOut("pool-priority")
	e.landed()
	end := e.Streamed(10 * time.Second)
	config, err := os.ReadFile(overlay + "/config.yaml")
	suite.NoError(t, err)
	wrong := strings.Replace(string(config), "limits: {pods: 200}", "limits: {podz: 3}", 1)
	kubectl("apply", "-k", kustomization(t, "resources: [MANIFESTS/overlays/kind]\ncomponents: [MANIFESTS/components/config]\nconfigMapGenerator: [{name: pool-priority-config, files: [config.yaml]}]\n",
		map[string]string{"config.yaml": wrong}))
	k.stuck("podz")
	k.replaced()
	kubectl("apply", "-k", overlay)
	k.rolledOut("pool-priority")
	end()
	k.clean()
	kubectl("delete", "-k", overlay, "--timeout=60s")
	e.cleanUp()
	e.NothingLeft(e.KubeConfig(), before)
}
