// Package integration tests the scheduler's binary, its shipped configuration and its shipped rights on a real control
// plane.
package integration

import (
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/must"
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

// When a test ends, other tests can use its cluster. If the test failed or had its own options for the control plane,
// they cannot.
var (
	clusters string // the directory of reusable clusters
	idle     = make(chan *devcluster.Cluster, 16)
)

// cluster returns a cluster that another test has returned, or a new one.
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
	karpenter *devcluster.Process // nil without Karpenter
	rbac      string              // the kustomization with the rights of our binaries
	refused   bool                // the API server may reject requests of our binaries as forbidden
	args      []string            // further arguments of the scheduler
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

// startWith brings up a cluster with these options and the virtual node.
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
	return e
}

// of returns the cluster for a subtest.
func (e *env) of(t *testing.T) *env {
	sub := *e
	sub.TB = t
	return &sub
}

// fast configures an autoscaler that has a loop every 500 ms and removes no VM.
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
	var one sync.Mutex
	e.Waiting = func() {
		one.Lock()
		defer one.Unlock()
		if e.scheduler.LostLease() {
			must.NoError(e, e.scheduler.Restart())
		}
	}
	if e.Referee, err = referee.Watch(e.ctx, e.Client, tiers); err != nil {
		e.Fatal(err)
	}
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
		if base := filepath.Base(file); base == "kwok.log" || base == "karpenter.log" {
			if data, err := os.ReadFile(file); err == nil {
				e.Logf("the end of %s:\n%s", base, suite.Tail(data, 4000))
			}
		}
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

// control starts the controller with the configuration.
func (e *env) control(config string) *devcluster.Component {
	e.Helper()
	return e.controlled(e.StartController(e.ctx, filepath.Join(*bin, devcluster.ControllerName), config, e.rbac))
}

// controlServing starts the controller with the configuration, and lets it serve metrics and probes.
func (e *env) controlServing(config string) *devcluster.Component {
	e.Helper()
	return e.controlled(e.StartServingController(e.ctx, filepath.Join(*bin, devcluster.ControllerName), config, e.rbac))
}

// controlled stops the controller at the end of the test, and checks its log.
func (e *env) controlled(c *devcluster.Component, err error) *devcluster.Component {
	e.Helper()
	must.NoError(e, err)
	e.Cleanup(func() {
		c.Stop()
		e.checkLogOf(c)
	})
	return c
}

// kubectl runs kubectl with the kubeconfig, or with the administrator's if that is "", and returns its output.
func (e *env) kubectl(kubeConfig, stdin string, args ...string) (string, error) {
	if kubeConfig == "" {
		kubeConfig = e.KubeConfig()
	}
	cmd := exec.CommandContext(e.ctx, filepath.Join(*bin, "tools", "kubectl"), append([]string{"--kubeconfig=" + kubeConfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// account makes a ServiceAccount and returns the path of its kubeconfig.
func (e *env) account(namespace, name string) string {
	e.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := e.Client.CoreV1().ServiceAccounts(namespace).Create(e.ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		e.Fatal(err)
	}
	token := must.Get(e.ServiceAccountToken(e.ctx, namespace, name))(e)
	path := filepath.Join(e.Dir(), namespace+"-"+name+".kubeconfig")
	must.NoError(e, e.WriteKubeConfig(path, token))
	return path
}

// cleanUp runs pool-priority-controller cleanup, which removes what an installation leaves.
func (e *env) cleanUp(args ...string) {
	e.Helper()
	if out, err := exec.Command(filepath.Join(*bin, devcluster.ControllerName), append([]string{"cleanup", "--kubeconfig=" + e.KubeConfig()}, args...)...).CombinedOutput(); err != nil {
		e.Errorf("cleanup: %v: %s", err, out)
	}
}
