package integration

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

var update = flag.Bool("update", false, "write the expected outputs of kubectl pools anew")

// maxPlugin is the largest size that the binary of kubectl pools may have.
const maxPlugin = 60 << 20

// pools runs kubectl pools, and returns what a user sees: the command line, the output, and the exit status if it is
// not 0.
func (e *env) pools(args ...string) string {
	e.Helper()
	cmd := exec.Command(filepath.Join(*bin, "kubectl-pools"), append([]string{"--kubeconfig=" + e.KubeConfig()}, args...)...)
	out, err := cmd.CombinedOutput()
	seen := strings.TrimRight("$ kubectl pools "+strings.Join(args, " "), " ") + "\n" + string(out)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		seen += fmt.Sprintf("(exit status %d)\n", exit.ExitCode())
	case err != nil:
		e.Fatal(err)
	}
	return seen
}

// masks replace the parts of the output that differ from run to run.
var masks = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b(web|host)-[0-9a-z]{6,10}-[0-9a-z]{5}\b`), "$1-POD"},
	{regexp.MustCompile(`\baks-(\w+)-\d+-vmss([0-9a-z]{6,})?\b`), "aks-$1-GROUP"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`), "CLOCK"},
	{regexp.MustCompile(`\b\d+m\d+s\b|\b\d+[smh]\b|\b\d+\.\d+s\b`), "AGE"},
	{regexp.MustCompile(`the API server at \S+`), "the API server at HOST"},
	// When the autoscaler has ended, the problem of a pool depends on the age of its nodes.
	{regexp.MustCompile(`(?m)^(! pool \w+).*\n(?:! pool .*\n)?`), "$1 PROBLEM\n"},
	{regexp.MustCompile(` {2,}`), "  "},
	{regexp.MustCompile(`(?m) +$`), ""},
}

func mask(text string) string {
	for _, m := range masks {
		text = m.what.ReplaceAllString(text, m.with)
	}
	return text
}

// shows waits until kubectl pools with these arguments has the expected output, and returns the output without masks.
// With -update, it first waits until the output stays the same for four seconds, and writes that as the expected
// output.
func (e *env) shows(name string, args ...string) string {
	e.Helper()
	file := filepath.Join("testdata", "pools", name+".txt")
	if *update {
		for last, same := "", 0; same < 4; time.Sleep(time.Second) {
			if got := mask(e.pools(args...)); got == last {
				same++
			} else {
				last, same = got, 0
			}
			must.NoError(e, os.WriteFile(file, []byte(last), 0o644))
		}
	}
	want := must.ReadFile(e, file)
	seen := ""
	e.Eventually(25*time.Second, func() string { // published figures may be 15 s old
		seen = e.pools(args...)
		return cmp.Diff(string(want), mask(seen))
	})
	return seen
}

// podOf returns the app's first pod, in the order of names, for which is returns true.
func (e *env) podOf(app string, is func(*corev1.Pod) bool) *corev1.Pod {
	e.Helper()
	pods := e.Pods(app)
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return is(&p) })
	if i < 0 {
		e.Fatalf("no such pod of %s", app)
	}
	return &pods[i]
}

func isPending(p *corev1.Pod) bool { return p.Spec.NodeName == "" }

// TestPools runs kubectl pools during the demo's load. There are pods on VMs and in the burst pool, waiting pods, and a
// pod that cannot burst. The test also runs kubectl pools after the autoscaler has ended, and as users with fewer
// rights.
func TestPools(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(filepath.Join(*bin, "kubectl-pools"))
	if err != nil {
		t.Fatalf("%v; make build builds it", err)
	}
	t.Logf("kubectl-pools has %.1f MiB", float64(info.Size())/(1<<20))
	if info.Size() > maxPlugin {
		t.Errorf("kubectl-pools has %d bytes, more than %d", info.Size(), maxPlugin)
	}
	system := vms("systempool", "system", 1, 1, 2, 10)
	system.BootDelay = metav1.Duration{Duration: time.Minute}
	if *update {
		system.BootDelay.Duration *= 3
	}
	e := start(t, fast(), vms("userpool", "user", 1, 1, 1, 20), system)
	e.rbac = "testdata/viewer"
	const config = "testdata/pools.yaml"
	if out := e.pools(); !strings.Contains(out, "error: there is no ConfigMap pool-priority-system/pool-priority-status: ") || !strings.HasSuffix(out, "(exit status 2)\n") {
		t.Errorf("where nothing is installed: %s", out)
	}
	e.control(config)
	e.waitGated(true)
	e.schedule(config, suite.UserTier(1), suite.SystemTier(2), suite.VirtualTier())

	// The VMs of both pools are full, and the autoscaler has ordered another VM.
	e.Create(suite.Deployment("web", 9, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "": 1})
	e.Create(suite.Deployment("host", 1, "500m", func(p *corev1.PodTemplateSpec) { p.Spec.HostNetwork = true }))
	e.shows("status-growing")
	e.shows("explain-changed", "explain", e.podOf("web", isPending).Name)
	e.Scale("web", 10)
	var waiting *corev1.Pod
	e.Eventually(10*time.Second, func() string {
		for _, p := range e.Pods("web") {
			if isPending(&p) && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return strings.Contains(c.Message, gate.ReasonGrowing.Sentence) }) {
				waiting = &p
				return ""
			}
		}
		return "no pod waits because a pool is growing"
	})
	seen := e.shows("explain-held", "explain", waiting.Name)
	e.oneConstant(waiting, seen, gate.ReasonGrowing)
	e.shows("explain-cannot-burst", "explain", e.podOf("host", isPending).Name)
	e.shows("explain-on-vm", "explain", e.podOf("web", func(p *corev1.Pod) bool { return p.Annotations["poolpriority.dev/pool"] == "system" }).Name)
	e.shows("explain-deployment", "explain", "deploy/web")
	e.viewers(waiting.Name)

	// The VM becomes ready, and the other pods burst.
	e.Lands(4*time.Minute, "host", map[string]int{"systempool": 1})
	e.Scale("web", 16)
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 4, "systempool": 7, "aci": 5})
	e.shows("status-full")
	bursts := func(p *corev1.Pod) bool {
		return p.Spec.NodeName == devcluster.VirtualNodeName && p.Status.Phase == corev1.PodRunning
	}
	e.Eventually(10*time.Second, func() string {
		pods := e.Pods("web")
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return bursts(&p) }) {
			return "no pod of web runs on the virtual node"
		}
		return ""
	})
	e.shows("explain-burst", "explain", e.podOf("web", bursts).Name)

	// The autoscaler is killed. (The scheduler then no longer knows whether the pools are full, and new pods wait.)
	e.Autoscaler.Kill()
	e.Eventually(60*time.Second, func() string {
		if out := e.pools(); strings.Count(out, "Unknown") < 2 {
			return out
		}
		return ""
	})
	e.Scale("web", 17)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 7, "aci": 5, "": 1})
	e.shows("status-dead")
	e.shows("explain-dead", "explain", e.podOf("web", isPending).Name)
}

// oneConstant checks that an event has the reason's sentence, the metric its code, and the output of explain both.
func (e *env) oneConstant(pod *corev1.Pod, seen string, reason nodegroups.Reason) {
	e.Helper()
	e.Eventually(10*time.Second, func() string {
		for _, message := range e.Events("FailedScheduling") {
			if strings.Contains(message, reason.Sentence) {
				return ""
			}
		}
		return fmt.Sprintf("no event has %q", reason.Sentence)
	})
	e.hasMetrics(fmt.Sprintf(`pool_priority_gate_decisions_total{decision="closed",pool="aci",reason=%q}`, reason.Code))
	if !strings.Contains(seen, reason.Sentence) || !strings.Contains(seen, " "+reason.Code+" ") {
		e.Errorf("explain %s has not both %s and %q:\n%s", pod.Name, reason.Code, reason.Sentence, seen)
	}
}

// viewers checks the outputs for a user with the viewer's role, for a user who may only see the pods of a namespace,
// and for a user without rights.
func (e *env) viewers(waiting string) {
	e.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "developer"}},
	}
	must.Do(e)(e.Client.RbacV1().RoleBindings(namespace).Create(e.ctx, binding, metav1.CreateOptions{}))
	as := func(user string, groups ...string) []string {
		args := []string{"--as=" + user, "--as-group=system:authenticated"}
		for _, group := range groups {
			args = append(args, "--as-group="+group)
		}
		return args
	}
	viewer, developer, nobody := as("developer", "pool-priority-viewers"), as("developer"), as("nobody")
	e.Eventually(20*time.Second, func() string { // the controller manager aggregates the ClusterRole view
		if out := e.pools(append([]string{"explain", waiting}, viewer...)...); strings.Contains(out, "exit status") {
			return out
		}
		return ""
	})
	e.shows("viewer-status", viewer...)
	e.shows("viewer-explain", append([]string{"explain", waiting}, viewer...)...)
	e.shows("developer-status", developer...)
	e.shows("developer-explain", append([]string{"explain", waiting}, developer...)...)
	e.shows("developer-pods-all", append([]string{"pods", "-A"}, developer...)...)
	e.shows("nobody-status", nobody...)
	e.shows("nobody-explain", append([]string{"explain", waiting}, nobody...)...)
	e.shows("nobody-pods", append([]string{"pods"}, nobody...)...)
}

// BenchmarkPools measures how long a process of kubectl pools takes in a cluster of 5,000 nodes and 50,000 pods.
func BenchmarkPools(b *testing.B) {
	const nodes, podsPerNode, runs = 5000, 10, 30
	e := startCrowd(b)
	e.populate(nodes, podsPerNode)
	scheduler := must.Get(e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), "testdata/no-leader-election.yaml", e.rbac))(b)
	b.Cleanup(scheduler.Stop)
	e.Create(suite.Deployment("web", 1, "100m")) // the scheduler publishes its state after the first pod
	e.Eventually(3*time.Minute, func() string {
		if out := e.pools(); !strings.Contains(out, "user") {
			return out
		}
		return ""
	})
	name := e.podOf("web", func(*corev1.Pod) bool { return true }).Name
	for _, args := range [][]string{nil, {"explain", name}} {
		var took []time.Duration
		for range runs {
			cmd := exec.Command(filepath.Join(*bin, "kubectl-pools"), append([]string{"--kubeconfig=" + e.KubeConfig()}, args...)...)
			began := time.Now()
			out, err := cmd.CombinedOutput()
			took = append(took, time.Since(began))
			if err != nil {
				b.Fatalf("%v: %s", err, bytes.TrimSpace(out))
			}
		}
		slices.Sort(took)
		median, most := took[runs/2], took[runs-1]
		mark := "ok"
		if median > 300*time.Millisecond {
			mark = "MISSED"
		}
		fmt.Printf("kubectl pools %s, %d nodes, %d pods: median %v, longest %v of %d; target ≤ 300ms: %s\n", strings.Join(args[:min(1, len(args))], ""), nodes, nodes*podsPerNode,
			median.Round(time.Millisecond), most.Round(time.Millisecond), runs, mark)
	}
}
