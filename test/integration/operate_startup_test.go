package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// run runs the scheduler's binary with the configuration until the binary prints the text or exits. It returns the
// output and the exit code. The code is stillRunning if the binary printed the text. It is timedOut if neither happened
// within 30 s.
func (e *env) run(config, until string, args ...string) (string, int) {
	e.Helper()
	data := must.ReadFile(e, config)
	file := filepath.Join(e.TempDir(), "config.yaml")
	if !strings.Contains(string(data), "kubeconfig:") {
		var err error
		data, err = devcluster.WithKubeConfig(data, e.KubeConfig())
		must.NoError(e, err)
	}
	must.NoError(e, os.WriteFile(file, data, 0o600))
	ctx, cancel := context.WithTimeout(e.ctx, 30*time.Second)
	defer cancel()
	out := &lockedBuffer{}
	cmd := exec.CommandContext(ctx, filepath.Join(*bin, devcluster.SchedulerName),
		append([]string{"--config=" + file, "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	must.NoError(e, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if ctx.Err() != nil {
				return out.String(), timedOut
			}
			if errors.As(err, &exit) {
				return out.String(), exit.ExitCode()
			}
			return out.String(), 0
		case <-time.After(50 * time.Millisecond):
		}
		if until != "" && strings.Contains(out.String(), until) {
			_ = cmd.Process.Kill()
			<-ended
			return out.String(), stillRunning
		}
	}
}

const (
	stillRunning = -1
	timedOut     = -2
)

// lockedBuffer is a buffer that a process writes while the test reads it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestStartUp starts the scheduler with many configurations and checks its output. All share a cluster without pods.
func TestStartUp(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *env)
	}{
		{"configurations that ship", testConfigurationsThatShip},
		{"write-config-to", testWriteConfigTo},
		{"configurations", testConfigurations},
		{"default lease", testDefaultLease},
		{"server version", testServerVersion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.test(t, e)
		})
	}
}

// testConfigurationsThatShip starts the scheduler with every shipped configuration.
func testConfigurationsThatShip(t *testing.T, shared *env) {
	e := shared.of(t)
	must.NoError(t, e.Apply(e.ctx, "testdata/coscheduling"))
	var files []string
	for _, pattern := range []string{"manifests/overlays/*/config.yaml", "manifests/examples/*.yaml", "manifests/examples/*/config.yaml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			out, code := e.of(t).run(file, "Handlers synced", "--v=3")
			if code != stillRunning {
				t.Errorf("exit code %d:\n%s", code, out)
			}
		})
	}
}

// testWriteConfigTo: --write-config-to writes the arguments with their defaults, and the scheduler starts with the
// written file.
func testWriteConfigTo(t *testing.T, shared *env) {
	e := shared.of(t)
	written := filepath.Join(t.TempDir(), "written.yaml")
	if out, code := e.run(aksConfig, "", "--write-config-to="+written); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	data := must.ReadFile(t, written)
	for _, want := range []string{"kind: PoolPriorityArgs", "order: Strict", "declineGrace: 1m0s", "clusterAutoscalerStatus: kube-system/cluster-autoscaler-status"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%q is not in what was written:\n%s", want, data)
		}
	}
	if out, code := e.run(written, "Handlers synced", "--v=3"); code != stillRunning {
		t.Errorf("what was written does not start: exit code %d:\n%s", code, out)
	}
}

// testConfigurations starts the scheduler with each file that TestJudge and TestLintConfigurations judge. The comments in a
// file say whether the scheduler starts, or have the messages that it must print before it ends.
func testConfigurations(t *testing.T, shared *env) {
	e := shared.of(t)
	must.NoError(t, e.Apply(e.ctx, "testdata/coscheduling"))
	files := must.Get(filepath.Glob(filepath.Join(root, "pkg/apis/config/v1/testdata/config/*.yaml")))(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data := string(must.ReadFile(t, file))
			if len(compat.OutOfTree) == 0 && strings.Contains(data, "Coscheduling") {
				return // this build does not have it
			}
			out, code := e.of(t).run(file, "Starting Kubernetes Scheduler")
			out = strings.ReplaceAll(out, `\"`, `"`) // the log quotes an error that has only one line
			if starts := strings.Contains(data, "# starts\n"); starts != (code == stillRunning) || !starts && code != 1 {
				t.Errorf("exit code %d:\n%s", code, suite.Tail([]byte(out), 2000))
			}
			for line := range strings.Lines(data) {
				if want, ok := strings.CutPrefix(line, "# want: "); ok && !strings.Contains(out, strings.TrimSpace(want)) {
					t.Errorf("no %q in:\n%s", want, suite.Tail([]byte(out), 2000))
				}
			}
		})
	}
}

// testDefaultLease: a configuration without a lease gets a lease of our own. The lease of the cluster's default
// scheduler is rejected, because only one of the two schedulers would run if they shared it.
func testDefaultLease(t *testing.T, shared *env) {
	e := shared.of(t)
	const ours = `lock="pool-priority-system/pool-priority-scheduler"`
	if out, code := e.run("testdata/no-lease.yaml", ours, "--leader-elect=true"); code != stillRunning {
		t.Errorf("exit code %d, and no %q:\n%s", code, ours, suite.Tail([]byte(out), 2000))
	}
	out, code := e.run("testdata/no-lease.yaml", "Handlers synced", "--v=3", "--leader-elect=true", "--leader-elect-resource-name=kube-scheduler", "--leader-elect-resource-namespace=kube-system")
	if want := "leaderElection: kube-system/kube-scheduler is the lease of the cluster's default scheduler"; code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit code %d, want 1 and %q:\n%s", code, want, suite.Tail([]byte(out), 2000))
	}
}

// testServerVersion: the scheduler ends if the API server is too old, and logs a warning if it is newer than the tested
// versions. A proxy in front of the API server changes its version.
func testServerVersion(t *testing.T, shared *env) {
	e := shared.of(t)
	config := must.Get(clientcmd.BuildConfigFromFlags("", e.KubeConfig()))(t)
	server := must.Get(url.Parse(config.Host))(t)
	transport := must.Get(rest.TransportFor(config))(t)
	for _, tc := range []struct {
		minor, want string
		code        int
	}{
		{"34", "the API server is Kubernetes 1.34 (v1.34.0), and this build needs 1.35 or later: upgrade the cluster", 1},
		{"37", "the API server is Kubernetes 1.37 (v1.37.0), newer than 1.36, the latest that this build was tested with: install a newer build", stillRunning},
	} {
		proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) }}
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/version" {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"major": "1", "minor": %q, "gitVersion": "v1.%s.0"}`, tc.minor, tc.minor)
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		out, code := e.run(aksConfig, "Handlers synced", "--v=3", "--master="+front.URL)
		front.CloseClientConnections()
		front.Close()
		if code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("an API server 1.%s: exit code %d, want %d and %q:\n%s", tc.minor, code, tc.code, tc.want, suite.Tail([]byte(out), 2000))
		}
	}
}
