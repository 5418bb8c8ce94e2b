package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// staysFor checks that check returns "" until the simulated autoscaler has ended this number of loops that began after
// the call.
func (e *env) staysFor(loops int, check func() string) {
	e.Helper()
	begun := 1 // the autoscaler may be in a loop now
	last := e.Autoscaler.Loops() + begun + loops
	e.Eventually(time.Duration(loops)*10*time.Second, func() string {
		ended := e.Autoscaler.Loops() // read before the check, so that the last check comes after the last loop
		if complaint := check(); complaint != "" {
			e.Fatal(complaint)
		}
		if ended < last {
			return fmt.Sprintf("the autoscaler has yet to end %d of %d loops", last-ended, loops)
		}
		return ""
	})
}

// checkLogOf returns the log of the process. It fails the test if a request was forbidden or the process crashed.
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

// checkLog fails the test if a request of the scheduler was forbidden or the scheduler crashed.
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

// nodesOf returns the nodes of the pool.
func (e *env) nodesOf(pool string) []corev1.Node {
	e.Helper()
	list := must.Get(e.Client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{LabelSelector: devcluster.AgentPoolLabel + "=" + pool}))(e)
	return list.Items
}

// updateNode changes the newest version of a node, and writes its spec and its status.
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

func (e *env) isGated() bool {
	e.Helper()
	node := must.Get(e.Client.CoreV1().Nodes().Get(e.ctx, devcluster.VirtualNodeName, metav1.GetOptions{}))(e)
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == configv1.GateTaintKey })
}

func (e *env) waitGated(want bool) {
	e.Helper()
	e.Eventually(15*time.Second, func() string {
		if got := e.isGated(); got != want {
			return fmt.Sprintf("the virtual node has the gate taint: %v", got)
		}
		return ""
	})
}

// published returns what the leader published.
func (e *env) published() (*published.Status, error) {
	cm, err := e.Client.CoreV1().ConfigMaps(devcluster.SchedulerNamespace).Get(e.ctx, "pool-priority-status", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return published.Decode(cm)
}

// metrics returns the scheduler's metrics.
func (e *env) metrics() string {
	e.Helper()
	status, body, err := e.scrape(e.scheduler, e.Config.BearerToken)
	if err != nil || status != http.StatusOK {
		e.Fatalf("%v, status %d: %s", err, status, suite.Tail(body, 1000))
	}
	return string(body)
}

// scrape requests the metrics of one of our binaries. If the token is not empty, the request has the token.
func (e *env) scrape(c *devcluster.Component, token string) (status int, body []byte, err error) {
	e.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request := must.Get(http.NewRequestWithContext(e.ctx, http.MethodGet, "https://"+c.Address+"/metrics", nil))(e)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// hasMetrics waits until the scheduler's metrics have the lines.
func (e *env) hasMetrics(lines ...string) {
	e.Helper()
	e.Eventually(10*time.Second, func() string {
		metrics := e.metrics()
		for _, line := range lines {
			if !strings.Contains(metrics, line) {
				var ours []string
				for _, l := range strings.Split(metrics, "\n") {
					if strings.HasPrefix(l, "pool_priority_") {
						ours = append(ours, l)
					}
				}
				return fmt.Sprintf("no %q in the metrics:\n%s", line, strings.Join(ours, "\n"))
			}
		}
		return ""
	})
}

// eventOn waits for an event with the reason on the object (any of its kind if name is ""), and returns its message.
func (e *env) eventOn(namespace, kind, name, reason string) string {
	e.Helper()
	var message string
	e.Eventually(20*time.Second, func() string {
		list, err := e.Client.CoreV1().Events(namespace).List(e.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, event := range list.Items {
			if event.InvolvedObject.Kind == kind && (name == "" || event.InvolvedObject.Name == name) && event.Reason == reason {
				message = event.Message
				return ""
			}
		}
		return fmt.Sprintf("no event %s on %s %s/%s", reason, kind, namespace, name)
	})
	return message
}

// notReady returns an error text if a pod of the app is not ready. A ReplicaSet deletes pods that are not ready first,
// whatever their deletion cost.
func (e *env) notReady(app string) string {
	e.Helper()
	for _, p := range e.Pods(app) {
		if !podutil.IsPodReady(&p) {
			return p.Name + " is not ready"
		}
	}
	return ""
}

// isReady returns "" if the Node's condition Ready has the status.
func (e *env) isReady(name string, want corev1.ConditionStatus) string {
	node, err := e.Client.CoreV1().Nodes().Get(e.ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == want {
			return ""
		}
	}
	return fmt.Sprintf("Node %s has other conditions than Ready %s: %v", name, want, node.Status.Conditions)
}
