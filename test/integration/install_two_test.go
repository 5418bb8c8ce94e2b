package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

var installations = flag.Duration("installations", 20*time.Second, "for how long TestTwoInstallations has nodes and pods change")

// startAudited brings up a cluster whose API server logs all writes to nodes. The returned function counts the
// successful writes by user.
func startAudited(t *testing.T, pools ...devcluster.Pool) (*env, func() map[string]int) {
	t.Helper()
	policy, err := filepath.Abs("testdata/audit-nodes.yaml")
	must.NoError(t, err)
	log := filepath.Join(t.TempDir(), "audit.log")
	e := startWith(t, devcluster.Options{Pools: pools, APIServerArgs: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-mode=blocking-strict"}})
	return e, func() map[string]int {
		file, err := os.Open(log)
		must.NoError(t, err)
		defer file.Close()
		writes := map[string]int{}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			var event struct {
				User           struct{ Username string }
				RequestURI     string
				ResponseStatus struct{ Code int }
			}
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
				continue // the API server is still writing the last line
			}
			if event.ResponseStatus.Code < 300 && !strings.Contains(event.RequestURI, "dryRun") {
				writes[event.User.Username]++
			}
		}
		return writes
	}
}

// startAs runs one of our binaries with the configuration. The binary uses the given ServiceAccount, not the one of the
// shipped manifests.
func (e *env) startAs(namespace, account, binary, config string, args ...string) *devcluster.Process {
	e.Helper()
	kubeConfig := e.account(namespace, account)
	data := must.ReadFile(e, config)
	data, err := devcluster.WithKubeConfig(data, kubeConfig)
	must.NoError(e, err)
	own := filepath.Join(e.Dir(), account+".yaml")
	must.NoError(e, os.WriteFile(own, data, 0o600))
	if binary == devcluster.SchedulerName {
		args = append(args, "--bind-address=127.0.0.1", "--secure-port=0", "--authentication-skip-lookup", "--authentication-kubeconfig="+kubeConfig, "--authorization-kubeconfig="+kubeConfig)
	} else {
		args = append(args, "--health-address=0", "--metrics-address=0", "--kubeconfig="+kubeConfig, "--namespace="+namespace)
	}
	p, err := devcluster.StartProcess(account, filepath.Join(*bin, binary), e.Dir(), nil, append(args, "--v=2", "--config="+own)...)
	must.NoError(e, err)
	e.Cleanup(func() {
		p.Stop()
		e.checkLogOf(&devcluster.Component{Process: p})
	})
	return p
}

// gateTaints returns the values of the node's gate taints, sorted.
func (e *env) gateTaints(node string) []string {
	e.Helper()
	n, err := e.Client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
	must.NoError(e, err)
	var values []string
	for _, t := range n.Spec.Taints {
		if pool.IsGateTaint(t) {
			values = append(values, t.Value)
		}
	}
	slices.Sort(values)
	return values
}

// hasGateTaints waits until the node has the gate taints of these installations.
func (e *env) hasGateTaints(node string, want ...string) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		if got := e.gateTaints(node); !slices.Equal(got, want) {
			return fmt.Sprintf("node %s has the gate taints of %q, want %q", node, got, want)
		}
		return ""
	})
}

// problemsOf returns the problems that the installation in the namespace publishes.
func (e *env) problemsOf(namespace string) string {
	cm, err := e.Client.CoreV1().ConfigMaps(namespace).Get(e.ctx, "pool-priority-status", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	state, err := published.Decode(cm)
	if err != nil {
		return err.Error()
	}
	return strings.Join(state.View.Problems, "\n")
}

func (e *env) setTeam(node, team string) {
	e.Helper()
	e.updateNode(node, func(n *corev1.Node) { n.Labels["team"] = team })
}

// TestTwoInstallations: two installations without a common node in their pools write only a few times to their own
// burst nodes, however nodes and pods change. A node that both list keeps the taint of the first installation, the
// other one reports a problem, and no controller overwrites the other's taint. Uninstalling one leaves the other's
// taint.
func TestTwoInstallations(t *testing.T) {
	t.Parallel()
	e, writes := startAudited(t, vms("userpool", "user", 2, 2, 2, 20), vms("systempool", "system", 2, 2, 2, 10))
	e.leastRights()
	must.NoError(t, e.Apply(e.ctx, "testdata/green"))
	e.holdsFor("green-system", "green-")
	const blueAccount, greenAccount = "pool-priority-controller", "green-pool-priority-controller"
	e.schedule("testdata/blue.yaml", suite.UserTier(2), suite.VirtualTier())
	blue := e.control("testdata/blue.yaml")
	e.startAs("green-system", "green-pool-priority-scheduler", devcluster.SchedulerName, "testdata/green.yaml")
	e.startAs("green-system", greenAccount, devcluster.ControllerName, "testdata/green.yaml")
	e.createSilentNode("green")
	e.setTeam("green", "green")
	e.hasGateTaints(devcluster.VirtualNodeName, configv1.DefaultInstallation)
	e.hasGateTaints("green", "green") // blue may have tainted the node before the node got the label; blue then removes its taint

	e.Create(suite.Deployment("blue", 30, "200m", endsFast))
	e.Eventually(30*time.Second, func() string { // at the same time, both installations would use the same room
		if n := len(slices.DeleteFunc(e.Pods("blue"), func(p corev1.Pod) bool { return p.Spec.NodeName == "" })); n != 30 {
			return fmt.Sprintf("%d of 30 pods are bound", n)
		}
		return ""
	})
	green := suite.Deployment("green", 30, "200m", endsFast)
	green.Spec.Template.Spec.SchedulerName = "green"
	e.Create(green)
	// The VMs of one installation are unlisted nodes of the other, which may use them. When all VMs are full, the pods
	// of each installation burst to its own burst node.
	e.Eventually(30*time.Second, func() string {
		on := map[string]int{}
		for app, burst := range map[string]string{"blue": devcluster.VirtualNodeName, "green": "green"} {
			for _, p := range e.Pods(app) {
				switch p.Spec.NodeName {
				case "", burst:
					on[p.Spec.NodeName]++
				case devcluster.VirtualNodeName, "green":
					t.Fatalf("a pod of %s is on %s", app, p.Spec.NodeName)
				}
			}
		}
		if on[""] > 0 || len(on) == 0 {
			return fmt.Sprint(on)
		}
		return ""
	})

	before := writes()
	ctx, cancel := context.WithTimeout(e.ctx, *installations)
	defer cancel()
	e.changes(ctx)
	made := writes()
	for _, account := range []string{devcluster.SchedulerNamespace + ":" + blueAccount, "green-system:" + greenAccount} {
		user := "system:serviceaccount:" + account
		n := made[user]
		t.Logf("%s wrote to nodes %d times, %d of them during %v of churn with %d writes of others", user, n, n-before[user], *installations, made["admin"]-before["admin"])
		if n >= 10 || n == 0 {
			t.Errorf("%s wrote to nodes %d times", user, n)
		}
	}
	for user, n := range made {
		if strings.Contains(user, "pool-priority-scheduler") {
			t.Errorf("%s wrote to nodes %d times", user, n)
		}
	}
	for _, ns := range []string{devcluster.SchedulerNamespace, "green-system"} {
		if problems := e.problemsOf(ns); strings.Contains(problems, "another installation") {
			t.Errorf("%s has the problem %s", ns, problems)
		}
	}

	e.setTeam("green", "both")
	e.Eventually(20*time.Second, func() string {
		if problems := e.problemsOf(devcluster.SchedulerNamespace); !strings.Contains(problems, "node green has the gate taint of another installation, green") {
			return problems
		}
		return ""
	})
	e.eventOn(metav1.NamespaceDefault, "Node", "green", "NodeInTwoInstallations")
	calm := writes()
	e.Stays(5*time.Second, func() string {
		if now := writes(); now["system:serviceaccount:"+devcluster.SchedulerNamespace+":"+blueAccount] != calm["system:serviceaccount:"+devcluster.SchedulerNamespace+":"+blueAccount] ||
			now["system:serviceaccount:green-system:"+greenAccount] != calm["system:serviceaccount:green-system:"+greenAccount] {
			return fmt.Sprintf("the controllers fight: %v, %v", calm, now)
		}
		return ""
	})

	blue.Stop()
	e.cleanUp("--taint-only")
	e.hasGateTaints(devcluster.VirtualNodeName)
	e.hasGateTaints("green", "green")
}

// changes changes nodes and pods as the administrator until the context ends.
func (e *env) changes(ctx context.Context) {
	e.Helper()
	nodes, err := e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{})
	must.NoError(e, err)
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; ctx.Err() == nil; i++ {
		node := nodes.Items[r.IntN(len(nodes.Items))].Name
		e.updateNode(node, func(n *corev1.Node) {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations["churn"] = fmt.Sprint(i)
			if n.Labels[devcluster.ModeLabel] != "" {
				n.Spec.Unschedulable = r.IntN(4) == 0
			}
			if i%20 == 0 {
				n.Labels["churn"] = fmt.Sprint(i)
			}
		})
		if i%10 == 0 {
			e.Scale("blue", int32(r.IntN(40)))
			e.Scale("green", int32(r.IntN(40)))
		}
		time.Sleep(50 * time.Millisecond)
	}
}
