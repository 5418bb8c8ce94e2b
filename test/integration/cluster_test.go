// Package integration tests the scheduler's binary, its shipped configuration and its shipped rights on a real control
// plane.
package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/devcluster"
	"poolpriority.dev/scheduler/pkg/devcluster/referee"
)

const (
	root      = "../.."
	aksConfig = root + "/manifests/overlays/aks/config.yaml"
	rbac      = root + "/manifests/rbac"
	namespace = metav1.NamespaceDefault
)

var (
	bin  = flag.String("bin", root+"/bin", "directory with tools/ and pool-priority-scheduler")
	logs = flag.String("logs", "", "directory that the logs of failed tests are copied to")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	for _, name := range []string{"tools/kube-apiserver", "pool-priority-scheduler"} {
		if _, err := os.Stat(filepath.Join(*bin, name)); err != nil {
			fmt.Fprintf(os.Stderr, "%v; make test-integration builds it\n", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// env is a cluster for one test.
type env struct {
	testing.TB
	*devcluster.Cluster
	ctx       context.Context
	scheduler *devcluster.Component
	referee   *referee.Referee
	rbac      string // the kustomization with what our binaries may do
	refused   bool   // the scheduler may be refused something
}

func vms(name, mode string, nodes, minimum, maximum, priority int) devcluster.Pool {
	return devcluster.Pool{
		Name: name, Mode: mode, Nodes: nodes, Min: minimum, Max: maximum, Priority: priority,
		CPU: resource.MustParse("2"), Memory: resource.MustParse("8Gi"),
		BootDelay: metav1.Duration{Duration: 500 * time.Millisecond},
	}
}

// start brings up a cluster with the pools, the virtual node and, unless options is nil, the simulated autoscaler.
func start(t testing.TB, autoscaler *devcluster.AutoscalerOptions, pools ...devcluster.Pool) *env {
	t.Helper()
	return startWith(t, devcluster.Options{Pools: pools, Autoscaler: autoscaler})
}

// startWith does so with further options.
func startWith(t testing.TB, options devcluster.Options) *env {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	options.Dir, options.BinDir, options.VirtualNode = t.TempDir(), filepath.Join(*bin, "tools"), true
	cluster, err := devcluster.Start(ctx, options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	e := &env{TB: t, Cluster: cluster, ctx: ctx, rbac: rbac}
	t.Cleanup(func() {
		if e.scheduler != nil {
			e.checkLog()
			e.scheduler.Stop()
		}
		cluster.Stop()
		cancel()
		e.keepLogs()
	})
	return e
}

// fast is an autoscaler whose loop takes a second and that removes no VM.
func fast() *devcluster.AutoscalerOptions {
	return &devcluster.AutoscalerOptions{Interval: 500 * time.Millisecond}
}

// schedule starts the scheduler with the configuration, and a referee.
func (e *env) schedule(config string, tiers ...referee.Tier) {
	e.Helper()
	var err error
	if e.scheduler, err = e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), config, e.rbac); err != nil {
		e.Fatal(err)
	}
	if e.referee, err = referee.Watch(e.ctx, e.Client, tiers); err != nil {
		e.Fatal(err)
	}
}

// stock starts a scheduler of the profile "stock" beside ours: the in-tree one.
func (e *env) stock() {
	e.Helper()
	s, err := e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), "testdata/stock-scheduler.yaml", e.rbac)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(s.Stop)
}

// checkLogOf fails the test if the process was refused something or crashed, and returns its log.
func (e *env) checkLogOf(c *devcluster.Component) []byte {
	log, err := os.ReadFile(c.Log())
	if err != nil {
		e.Error(err)
	}
	for _, line := range strings.Split(string(log), "\n") {
		if (strings.Contains(line, "forbidden") && !e.refused) || strings.Contains(line, "panic") || strings.Contains(line, "DATA RACE") {
			e.Errorf("%s has: %s", filepath.Base(c.Log()), line)
		}
	}
	return log
}

// checkLog fails the test if the scheduler was refused something or crashed.
func (e *env) checkLog() {
	log := e.checkLogOf(e.scheduler)
	if e.Failed() {
		e.Logf("the end of the scheduler's log:\n%s", tail(log, 4000))
	}
}

// logs waits until the scheduler's log has the text.
func (e *env) logs(text string) {
	e.Helper()
	e.eventually(20*time.Second, func() string {
		log, err := os.ReadFile(e.scheduler.Log())
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(string(log), text) {
			return fmt.Sprintf("no %q in the scheduler's log:\n%s", text, tail(log, 3000))
		}
		return ""
	})
}

// keepLogs copies the logs of a failed test, if the flag asks for it.
func (e *env) keepLogs() {
	files, err := filepath.Glob(filepath.Join(e.Dir(), "*.log"))
	if err != nil || !e.Failed() || *logs == "" {
		return
	}
	dir := filepath.Join(*logs, strings.Map(func(r rune) rune {
		if strings.ContainsRune(" /:,'", r) {
			return '-'
		}
		return r
	}, e.Name()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		e.Log(err)
		return
	}
	for _, file := range files {
		if err := os.Rename(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			e.Log(err)
		}
	}
	e.Logf("the logs are in %s", dir)
}

func tail(data []byte, n int) string {
	if len(data) > n {
		data = data[len(data)-n:]
	}
	return string(data)
}

func (e *env) Failed() bool { return e.TB.Failed() }

func userTier(maximum int) referee.Tier {
	return referee.Tier{Name: "user", Max: maximum, Owns: func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == "user" }}
}

func systemTier(maximum int) referee.Tier {
	return referee.Tier{Name: "system", Max: maximum, Owns: func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == "system" }}
}

func virtualTier() referee.Tier {
	return referee.Tier{Name: "aci", Owns: func(n *corev1.Node) bool { return n.Name == devcluster.VirtualNodeName }}
}

// eventually waits until check returns "", and fails with what it returns otherwise.
func (e *env) eventually(timeout time.Duration, check func() string) {
	e.Helper()
	deadline := time.Now().Add(timeout)
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			e.Fatalf("after %v: %s", timeout, complaint)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// stays checks that check returns "" for the duration.
func (e *env) stays(duration time.Duration, check func() string) {
	e.Helper()
	for deadline := time.Now().Add(duration); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if complaint := check(); complaint != "" {
			e.Fatal(complaint)
		}
	}
}

// rightOrder waits until all placements are judged and fails if one was wrong. It returns the pods by tier.
func (e *env) rightOrder(total int) []int {
	e.Helper()
	var byTier []int
	var violations []string
	e.eventually(30*time.Second, func() string {
		byTier, violations = e.referee.Judge()
		judged := 0
		for _, n := range byTier {
			judged += n
		}
		if judged < total {
			return fmt.Sprintf("%d of %d placements were judged: %v", judged, total, byTier)
		}
		return ""
	})
	for _, v := range violations {
		e.Error(v)
	}
	return byTier
}

// deployment is a Deployment of pods that ask for the CPU.
func deployment(name string, replicas int32, cpu string, changes ...func(*corev1.PodTemplateSpec)) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SchedulerName: devcluster.SchedulerName,
					Containers: []corev1.Container{{Name: "web", Image: "web", Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Mi")}}}},
				},
			},
		},
	}
	for _, change := range changes {
		change(&d.Spec.Template)
	}
	return d
}

func toleratesVirtualNode(t *corev1.PodTemplateSpec) {
	t.Spec.Tolerations = append(t.Spec.Tolerations, corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists})
}

func selects(key, value string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		if t.Spec.NodeSelector == nil {
			t.Spec.NodeSelector = map[string]string{}
		}
		t.Spec.NodeSelector[key] = value
	}
}

func (e *env) create(d *appsv1.Deployment) {
	e.Helper()
	if _, err := e.Client.AppsV1().Deployments(namespace).Create(e.ctx, d, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

// load reads a Deployment from a file, for our scheduler.
func load(t testing.TB, path string) *appsv1.Deployment {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(data, d); err != nil {
		t.Fatal(err)
	}
	d.Namespace = namespace
	d.Spec.Template.Spec.SchedulerName = devcluster.SchedulerName
	return d
}

func (e *env) scale(name string, replicas int32) {
	e.Helper()
	_, err := e.Client.AppsV1().Deployments(namespace).UpdateScale(e.ctx, name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
	if err != nil {
		e.Fatal(err)
	}
}

// pods returns the pods of the app, or all with "".
func (e *env) pods(app string) []corev1.Pod {
	e.Helper()
	options := metav1.ListOptions{}
	if app != "" {
		options.LabelSelector = "app=" + app
	}
	list, err := e.Client.CoreV1().Pods(namespace).List(e.ctx, options)
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// placed counts the app's pods by the name of their pool; pending ones count under "".
func (e *env) placed(app string) map[string]int {
	e.Helper()
	pods := e.pods(app) // before the nodes, so that a new node's pod has its pool
	nodes, err := e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	poolOf := map[string]string{}
	for _, n := range nodes.Items {
		poolOf[n.Name] = n.Labels[devcluster.AgentPoolLabel]
		if n.Name == devcluster.VirtualNodeName {
			poolOf[n.Name] = "aci"
		}
	}
	counts := map[string]int{}
	for _, p := range pods {
		if p.DeletionTimestamp == nil {
			counts[poolOf[p.Spec.NodeName]]++
		}
	}
	return counts
}

// lands waits until the app's pods are placed as wanted, by pool.
func (e *env) lands(timeout time.Duration, app string, want map[string]int) {
	e.Helper()
	e.eventually(timeout, func() string {
		if got := e.placed(app); !equal(got, want) {
			return fmt.Sprintf("pods of %s by pool: %v, want %v; %s", app, got, want, e.said(app))
		}
		return ""
	})
}

func equal(a, b map[string]int) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	for k, v := range b {
		if a[k] != v {
			return false
		}
	}
	return true
}

// said is what a pending pod of the app was told.
func (e *env) said(app string) string {
	for _, p := range e.pods(app) {
		for _, c := range p.Status.Conditions {
			if p.Spec.NodeName == "" && c.Type == corev1.PodScheduled {
				return fmt.Sprintf("%s: %s: %s", p.Name, c.Reason, c.Message)
			}
		}
	}
	return ""
}

func (e *env) pool(name string) *devcluster.PoolManager {
	for _, p := range e.Pools {
		if p.Name == name {
			return p
		}
	}
	e.Fatalf("no pool %s", name)
	return nil
}

// nodesOf returns the nodes of the pool.
func (e *env) nodesOf(pool string) []corev1.Node {
	e.Helper()
	list, err := e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{LabelSelector: devcluster.AgentPoolLabel + "=" + pool})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// updateNode changes a node, against the newest version of it.
func (e *env) updateNode(name string, change func(*corev1.Node)) {
	e.Helper()
	e.eventually(5*time.Second, func() string {
		node, err := e.Client.CoreV1().Nodes().Get(e.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		change(node)
		status := node.Status
		if node, err = e.Client.CoreV1().Nodes().Update(e.ctx, node, metav1.UpdateOptions{}); err != nil {
			return err.Error()
		}
		node.Status = status
		if _, err = e.Client.CoreV1().Nodes().UpdateStatus(e.ctx, node, metav1.UpdateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// events returns the messages of the events with the reason.
func (e *env) events(reason string) []string {
	e.Helper()
	list, err := e.Client.CoreV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err != nil {
		e.Fatal(err)
	}
	var messages []string
	for _, event := range list.Items {
		messages = append(messages, event.Message)
	}
	return messages
}
