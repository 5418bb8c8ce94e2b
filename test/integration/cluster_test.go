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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/suite"
)

const (
	root      = "../.."
	aksConfig = root + "/manifests/overlays/aks/config.yaml"
	rbac      = root + "/manifests/rbac"
	namespace = suite.Namespace
)

var (
	bin  = flag.String("bin", root+"/bin", "directory with tools/ and pool-priority-scheduler")
	logs = flag.String("logs", "", "directory that the logs of failed tests are copied to")

	policies = flag.Bool("policies", false, "have the policies for our own accounts in every cluster, as some tests do anyway")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	for _, name := range []string{"tools/kube-apiserver", "pool-priority-scheduler"} {
		if _, err := os.Stat(filepath.Join(*bin, name)); err != nil {
			fmt.Fprintf(os.Stderr, "%v; make tools build builds it\n", err)
			os.Exit(1)
		}
	}
	var err error
	if clusters, err = os.MkdirTemp("", "integration"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	close(idle)
	for cluster := range idle {
		cluster.Stop()
	}
	_ = os.RemoveAll(clusters)
	os.Exit(code)
}

// Tests give their clusters back for others to use, unless they have options of their own for the control plane, or fail.
var (
	clusters string // the directory of such clusters
	idle     = make(chan *devcluster.Cluster, 16)
)

// cluster is one that another test has given back, or a new one.
func cluster(ctx context.Context, t testing.TB, options devcluster.Options) (*devcluster.Cluster, error) {
	if ownControlPlane(options) {
		options.Dir = t.TempDir()
		return devcluster.Start(ctx, options)
	}
	select {
	case c := <-idle:
		t.Log("on a control plane that other tests have used")
		return c.Reuse(ctx, options)
	default:
		var err error
		if options.Dir, err = os.MkdirTemp(clusters, ""); err != nil {
			return nil, err
		}
		return devcluster.Start(ctx, options)
	}
}

func ownControlPlane(options devcluster.Options) bool {
	return options.NodeGrace != 0 || options.APIServerArgs != nil || options.ControllerManagerArgs != nil
}

// env is a cluster for one test.
type env struct {
	suite.Suite
	*devcluster.Cluster
	ctx       context.Context
	scheduler *devcluster.Component
	rbac      string   // the kustomization with what our binaries may do
	refused   bool     // the scheduler may be refused something
	args      []string // further arguments of the scheduler
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
	options.BinDir, options.VirtualNode, options.GOGC = filepath.Join(*bin, "tools"), true, "400"
	cluster, err := cluster(ctx, t, options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	e := &env{Suite: suite.New(ctx, t, cluster.Client), Cluster: cluster, ctx: ctx, rbac: rbac}
	t.Cleanup(func() {
		if e.scheduler != nil {
			e.checkLog()
			e.scheduler.Stop()
		}
		cancel()
		if ownControlPlane(options) || t.Failed() {
			cluster.Stop()
			e.keepLogs()
			return
		}
		if err := cluster.Clear(context.Background()); err != nil {
			t.Logf("the cluster is not used again: %v", err)
			cluster.Stop()
			return
		}
		idle <- cluster
	})
	if *policies {
		e.leastRights()
	}
	return e
}

// of is the cluster for a part of the test.
func (e *env) of(t *testing.T) *env {
	sub := *e
	sub.TB = t
	return &sub
}

// fast is an autoscaler whose loop takes a second and that removes no VM.
func fast() *devcluster.AutoscalerOptions {
	return &devcluster.AutoscalerOptions{Interval: 500 * time.Millisecond}
}

// schedule starts the scheduler with the configuration, and a referee.
func (e *env) schedule(config string, tiers ...referee.Tier) {
	e.Helper()
	var err error
	if e.scheduler, err = e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), config, e.rbac, e.args...); err != nil {
		e.Fatal(err)
	}
	if e.Referee, err = referee.Watch(e.ctx, e.Client, tiers); err != nil {
		e.Fatal(err)
	}
}

// staysFor checks that check returns "" until the simulated autoscaler has ended so many loops that began after the call.
func (e *env) staysFor(loops int, check func() string) {
	e.Helper()
	begun := 1 // it may be in a loop now
	last := e.Autoscaler.Loops() + begun + loops
	e.Eventually(time.Duration(loops)*10*time.Second, func() string {
		ended := e.Autoscaler.Loops() // before the check, which must come after the last of them
		if complaint := check(); complaint != "" {
			e.Fatal(complaint)
		}
		if ended < last {
			return fmt.Sprintf("the autoscaler has yet to end %d of %d loops", last-ended, loops)
		}
		return ""
	})
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
		e.Logf("the end of the scheduler's log:\n%s", suite.Tail(log, 4000))
	}
}

// logs waits until the scheduler's log has the text.
func (e *env) logs(text string) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		log, err := os.ReadFile(e.scheduler.Log())
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(string(log), text) {
			return fmt.Sprintf("no %q in the scheduler's log:\n%s", text, suite.Tail(log, 3000))
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

func (e *env) Failed() bool { return e.TB.Failed() }

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
	suite.NoError(e, err)
	return list.Items
}

// updateNode changes a node, against the newest version of it.
func (e *env) updateNode(name string, change func(*corev1.Node)) {
	e.Helper()
	e.Eventually(5*time.Second, func() string {
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
