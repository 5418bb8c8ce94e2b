package e2e

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
)

var (
	release = flag.String("release", "", "directory of the release that TestRelease installs")
	next    = flag.String("next", "", "directory of the release that TestRelease upgrades to")
)

// TestRelease installs a release from its files alone, upgrades to the next one, and rolls back, with the chart. It
// does the same with a single-file manifest, but for the rollback. make release-check loads the images before.
func TestRelease(t *testing.T) {
	if *release == "" {
		t.Skip("no -release: make release-check sets it")
	}
	const mine = "mine"
	values := func(e *env) string {
		return e.edited("values.yaml", "image: {repository: localhost/pool-priority-scheduler, tag: e2e}\n", "")
	}
	t.Run("chart", func(t *testing.T) {
		e := start(t, mine)
		e.kubectl("create", "namespace", mine)
		e.kubectl("-n", mine, "wait", "--for=create", "--timeout=30s", "configmap/kube-root-ca.crt", "serviceaccount/default")
		before := e.Settled(*kubeconfig)
		runs := func(dir string) {
			t.Helper()
			e.rolledOut()
			e.runsImageOf(dir)
			e.order(5)
		}
		helm := func(verb, dir string) {
			t.Helper()
			e.helm(verb, "pool-priority", e.only(dir, "pool-priority-scheduler-*.tgz"), "--namespace", mine, "--wait", "--timeout=120s", "--values", values(e))
		}
		helm("install", *release)
		runs(*release)
		e.plugin(*release, mine)
		end := e.Streamed(5*time.Second, small)
		helm("upgrade", *next)
		end()
		runs(*next)
		end = e.Streamed(5*time.Second, small)
		e.helm("rollback", "pool-priority", "--namespace", mine, "--timeout=120s", "--wait")
		end()
		runs(*release)
		e.logs.end()
		e.helm("uninstall", "pool-priority", "--namespace", mine)
		e.NothingLeft(*kubeconfig, before)
		e.kubectl("delete", "namespace", mine, "--timeout=60s")
	})
	t.Run("manifest", func(t *testing.T) {
		e := start(t, devcluster.SchedulerNamespace)
		for _, dir := range []string{*release, *next} {
			e.kubectl("apply", "-f", e.only(dir, "pool-priority-aks-kubernetes1.35.yaml"))
			e.rolledOut()
			e.runsImageOf(dir)
		}
		e.logs.end()
		e.kubectl("delete", "-f", e.only(*next, "pool-priority-aks-kubernetes1.35.yaml"), "--timeout=60s")
	})
}

// only returns the path of the directory's only file that matches the pattern.
func (e *env) only(dir, pattern string) string {
	e.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		e.Fatalf("%s has %q for %s, want one file; %v", dir, files, pattern, err)
	}
	return files[0]
}

// runsImageOf fails the test if one of our containers has another image than the release's for Kubernetes 1.35.
func (e *env) runsImageOf(dir string) {
	e.Helper()
	digest := strings.TrimSpace(e.must("jq", "-r", ".manifests[0].digest", filepath.Join(dir, "oci/kubernetes1.35/index.json")))
	pods, err := e.Client.CoreV1().Pods(e.system).List(e.ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) == 0 || digest == "" {
		e.Fatalf("%d pods, digest %q; %v", len(pods.Items), digest, err)
	}
	for _, pod := range pods.Items {
		for _, c := range pod.Spec.Containers {
			if !strings.HasSuffix(c.Image, "@"+digest) {
				e.Errorf("%s runs %s, want the digest %s", pod.Name, c.Image, digest)
			}
		}
	}
	e.Logf("%d pods run %s of %s", len(pods.Items), digest, filepath.Base(dir))
}

// plugin runs the release's kubectl pools against the scheduler in the namespace.
func (e *env) plugin(dir, namespace string) {
	e.Helper()
	to := e.TempDir()
	e.must("tar", "-C", to, "-xzf", e.only(dir, "kubectl-pools-linux-amd64.tar.gz"))
	e.Eventually(60*time.Second, func() string {
		out := e.must(filepath.Join(to, "kubectl-pools"), "--status="+namespace+"/pool-priority-status")
		for _, pool := range []string{"user", "system", "aci"} {
			if !strings.Contains(out, pool) {
				return out
			}
		}
		e.Log(out)
		return ""
	})
	e.Log(e.must(filepath.Join(to, "kubectl-pools"), "version", "--status="+namespace+"/pool-priority-status"))
}
