// Package e2e tests the image and the manifests as they are deployed, on a cluster with real kubelets (kind.yaml). It
// uses nothing of the cluster but its kubeconfig.
package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const (
	root = "../.."
	// image is the image of the tests' pods.
	image = "pool-priority-e2e:e2e"
)

var (
	bin        = flag.String("bin", root+"/bin", "directory with tools/ and pool-priority-controller")
	kubeconfig = flag.String("kubeconfig", "", "the cluster's kubeconfig")
	logs       = flag.String("logs", "", "directory that the logs of failed tests are written to")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	if *kubeconfig == "" {
		fmt.Fprintln(os.Stderr, "-kubeconfig names no cluster; make test-e2e makes one")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// env is the cluster, for one test.
type env struct {
	suite.Suite
	Client kubernetes.Interface
	ctx    context.Context
	system string // the namespace of our pods
	logs   *logReader
}

// start applies cluster.yaml, waits until all nodes are ready, and from then on reads the logs of our pods in the
// namespace.
func start(t *testing.T, system string) *env {
	t.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", *kubeconfig))(t)
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	e := &env{Suite: suite.New(ctx, t, client), Client: client, ctx: ctx, system: system}
	e.kubectl("apply", "-f", "cluster.yaml")
	e.kubectl("-n", "e2e", "rollout", "status", "daemonset/agent", "--timeout=60s")
	e.kubectl("wait", "--for=create", "--timeout=60s", "node/"+devcluster.VirtualNodeName)
	e.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "nodes", "--all")
	if e.Referee, err = referee.Watch(ctx, client, []referee.Tier{suite.UserTier(2), suite.SystemTier(2), suite.VirtualTier()}); err != nil {
		t.Fatal(err)
	}
	e.Referee.BindingLag = 5 * time.Second // the shipped configurations leave the rate of requests at its default
	e.logs = readLogs(ctx, client, system)
	t.Cleanup(func() {
		e.logs.check(e)
		if t.Failed() {
			e.logs.keep(t)
			t.Log(e.run("kubectl", "get", "pods", "-A", "-o", "wide"))
		}
	})
	return e
}

// run runs a command of bin/tools and returns its output, followed by the error if it fails.
func (e *env) run(name string, args ...string) string {
	command := exec.CommandContext(e.ctx, filepath.Join(*bin, "tools", name), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+*kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s\n%s %s: %v", out, name, strings.Join(args, " "), err)
	}
	return string(out)
}

// must runs a command and returns its output. It fails the test if the command fails.
func (e *env) must(name string, args ...string) string {
	e.Helper()
	command := exec.CommandContext(e.ctx, name, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+*kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil {
		e.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (e *env) kubectl(args ...string) string {
	e.Helper()
	return e.must(filepath.Join(*bin, "tools", "kubectl"), args...)
}

func (e *env) helm(args ...string) string {
	e.Helper()
	return e.must(filepath.Join(*bin, "tools", "helm"), args...)
}

// rolledOut waits until the new pods of our Deployments are ready, the old ones are gone, a scheduler leads, and the
// virtual node has the gate taint.
func (e *env) rolledOut() {
	e.Helper()
	for _, name := range []string{"pool-priority-scheduler", "pool-priority-controller"} {
		e.kubectl("-n", e.system, "rollout", "status", "deployment/"+name, "--timeout=120s")
	}
	e.Eventually(60*time.Second, func() string {
		pods, err := e.Client.CoreV1().Pods(e.system).List(e.ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) != 4 {
			return fmt.Sprintf("%d pods of ours, want 4; %v", len(pods.Items), err)
		}
		if e.leader() == "" {
			return "nobody leads"
		}
		return ""
	})
	e.gated()
}

// gated waits until the controller has put the gate taint on the virtual node.
func (e *env) gated() {
	e.Helper()
	e.Eventually(60*time.Second, func() string {
		node, err := e.Client.CoreV1().Nodes().Get(e.ctx, devcluster.VirtualNodeName, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == configv1.GateTaintKey {
				return ""
			}
		}
		return "the virtual node has no gate taint"
	})
}

// leader returns the name of the scheduler's pod that leads, or "".
func (e *env) leader() string {
	pod, _ := e.leads()
	return pod
}

// leads returns the name of the scheduler's pod that leads, or "", and the time when it began to lead. That time is
// from the pod's clock, which is this machine's.
func (e *env) leads() (string, time.Time) {
	lease, err := e.Client.CoordinationV1().Leases(e.system).Get(e.ctx, devcluster.SchedulerName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil || lease.Spec.AcquireTime == nil {
		return "", time.Time{}
	}
	pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return pod, lease.Spec.AcquireTime.Time
}

// free returns how many further pods the nodes of each pool can run, according to their kubelets' max-pods.
func (e *env) free() map[string]int {
	e.Helper()
	nodes := must.Get(e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{LabelSelector: devcluster.AgentPoolLabel}))(e)
	pods := must.Get(e.Client.CoreV1().Pods("").List(e.ctx, metav1.ListOptions{}))(e)
	free, pool := map[string]int{}, map[string]string{}
	for _, node := range nodes.Items {
		pool[node.Name] = node.Labels[devcluster.AgentPoolLabel]
		free[pool[node.Name]] += int(node.Status.Allocatable.Pods().Value())
	}
	for _, pod := range pods.Items {
		if name := pool[pod.Spec.NodeName]; name != "" && !suite.Over(&pod) {
			free[name]--
		}
	}
	return free
}

// runs waits until the app's pods are placed as wanted, by pool, and are ready there.
func (e *env) runs(timeout time.Duration, app string, want map[string]int) {
	e.Helper()
	e.Lands(timeout, app, want)
	e.ready(timeout, app)
}

// ready waits until all of the app's pods that have a node are ready there.
func (e *env) ready(timeout time.Duration, app string) {
	e.Helper()
	e.Eventually(timeout, func() string {
		for _, p := range e.Pods(app) {
			ready := p.Spec.NodeName == "" || suite.Over(&p)
			for _, c := range p.Status.Conditions {
				ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}
			if !ready {
				return fmt.Sprintf("pod %s on %s is not ready: %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason)
			}
		}
		return ""
	})
}

// gone deletes the apps' Deployments and waits until their pods are gone.
func (e *env) gone(apps ...string) {
	e.Helper()
	e.kubectl(append([]string{"-n", suite.Namespace, "delete", "--timeout=60s", "deployment"}, apps...)...)
	e.Eventually(90*time.Second, func() string {
		for _, app := range apps {
			if n := len(e.Pods(app)); n > 0 {
				return fmt.Sprintf("%d pods of %s are left", n, app)
			}
		}
		return ""
	})
}

// small lets pods run a real image. Only the kubelets' max-pods limits their number.
func small(t *corev1.PodTemplateSpec) {
	grace := int64(1)
	t.Spec.TerminationGracePeriodSeconds = &grace
	t.Spec.Containers[0].Image = image
	t.Spec.Containers[0].Command = []string{"/pause"}
}

// signal sends the signal to the process of the command in the pod, from the agent on its node.
func (e *env) signal(name, command string, pod *corev1.Pod) string {
	e.Helper()
	host := pod.Name
	if pod.Spec.HostNetwork {
		host = pod.Spec.NodeName
	}
	agents, err := e.Client.CoreV1().Pods("e2e").List(e.ctx, metav1.ListOptions{LabelSelector: "app=agent", FieldSelector: "spec.nodeName=" + pod.Spec.NodeName})
	if err != nil || len(agents.Items) != 1 {
		e.Fatalf("%d agents on %s; %v", len(agents.Items), pod.Spec.NodeName, err)
	}
	return e.run("kubectl", "-n", "e2e", "exec", agents.Items[0].Name, "--", "/agent", "signal", name, command, host)
}

// logReader keeps the logs of our pods, also of those that are gone.
type logReader struct {
	namespace string

	mu    sync.Mutex
	lines map[string][]string // by pod
	ended bool
	// excused is set while an API server starts, because it refuses requests until it has read the roles.
	excused bool
	refused int // the number of excused lines
}

func (r *logReader) excuse(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.excused = yes
}

// end drops all further lines, because uninstalled pods lose their rights before they end.
func (r *logReader) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

// readLogs reads the logs of our pods until the context ends.
func readLogs(ctx context.Context, client kubernetes.Interface, namespace string) *logReader {
	r := &logReader{namespace: namespace, lines: map[string][]string{}}
	go func() {
		reading := map[string]bool{}
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			pods, err := client.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, pod := range pods.Items {
				if !reading[pod.Name] && pod.Status.Phase == corev1.PodRunning {
					reading[pod.Name] = true
					go r.follow(ctx, client, pod.Name)
				}
			}
		}
	}()
	return r
}

// follow reads the pod's log until the pod is gone. If the stream ends, it reads on from that time.
func (r *logReader) follow(ctx context.Context, client kubernetes.Interface, pod string) {
	var since *metav1.Time
	for ctx.Err() == nil {
		if _, err := client.CoreV1().Pods(r.namespace).Get(ctx, pod, metav1.GetOptions{}); err != nil && strings.Contains(err.Error(), "not found") {
			return
		}
		stream, err := client.CoreV1().Pods(r.namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true, SinceTime: since}).Stream(ctx)
		if err == nil {
			lines := bufio.NewScanner(stream)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				r.mu.Lock()
				switch {
				case r.excused && strings.Contains(lines.Text(), "forbidden"):
					r.refused++
				case !r.ended:
					r.lines[pod] = append(r.lines[pod], lines.Text())
				}
				r.mu.Unlock()
			}
			_ = stream.Close()
			now := metav1.Now()
			since = &now
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// check fails the test if one of our pods was refused something or crashed.
func (r *logReader) check(e *env) {
	e.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	for pod, lines := range r.lines {
		total += len(lines)
		for _, line := range lines {
			if strings.Contains(line, "forbidden") || strings.Contains(line, "panic") {
				e.Errorf("%s: %s", pod, line)
			}
		}
	}
	e.Logf("%d lines of %d pods of ours were read; %d refusals while the API server started", total, len(r.lines), r.refused)
	if total == 0 {
		e.Error("no line of our pods' logs was read")
	}
}

// keep writes the logs to a directory, if the flag names one.
func (r *logReader) keep(t *testing.T) {
	if *logs == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.MkdirAll(*logs, 0o700); err != nil {
		t.Log(err)
	}
	for pod, lines := range r.lines {
		if err := os.WriteFile(filepath.Join(*logs, pod+".log"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Log(err)
		}
	}
}
