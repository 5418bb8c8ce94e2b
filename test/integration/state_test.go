package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

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

// scrape asks one of our binaries for its metrics, with the token if it is not empty.
func (e *env) scrape(c *devcluster.Component, token string) (status int, body []byte, err error) {
	e.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(e.ctx, http.MethodGet, "https://"+c.Address+"/metrics", nil)
	suite.NoError(e, err)
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

// TestPublishedState: the states of the pools, with reasons and since when, are in the ConfigMap and in the metrics.
func TestPublishedState(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 1, 1, 2, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 13, "500m"))
	e.Lands(40*time.Second, "web", map[string]int{"userpool": 8, "systempool": 4, "aci": 1})
	e.Eventually(10*time.Second, func() string {
		state, err := e.published()
		if err != nil {
			return err.Error()
		}
		got := ""
		for _, p := range state.Pools {
			got += fmt.Sprintf("%s %s %s %d;", p.Name, p.State, p.Reason, p.Nodes)
			if p.Since.IsZero() || p.Message == "" || p.Detail == "" {
				return fmt.Sprintf("incomplete: %+v", p)
			}
		}
		if want := "user Full AtMaxSize 2;system Full AtMaxSize 1;"; got != want {
			return fmt.Sprintf("published %q, want %q", got, want)
		}
		return ""
	})
	e.hasMetrics(`pool_priority_pool_state{pool="user",state="Full"} 1`, `pool_priority_pool_state{pool="user",state="Unknown"} 0`,
		`pool_priority_pool_state_info{pool="user",reason="AtMaxSize",state="Full"} 1`, `pool_priority_pool_nodes{condition="ready",pool="user"} 2`,
		`pool_priority_gate_decisions_total{decision="closed",pool="aci",reason="PoolGrowing"}`,
		`pool_priority_gate_decisions_total{decision="open",pool="aci",reason="Open"}`, `pool_priority_held_pods{reason="PoolCanGrow"} 0`,
		`pool_priority_placements_total{pool="aci",reason="Open"} 1`, `pool_priority_pool_pods{pool="aci"} 1`, "pool_priority_order_violations_total 0")
	// Nothing changes, and nothing is written but, once a minute, when it was.
	content := func() string {
		s, err := e.published()
		suite.NoError(t, err)
		s.Memory.Written = time.Time{}
		data, err := s.Encode()
		suite.NoError(t, err)
		return fmt.Sprint(data)
	}
	version := func() string {
		cm, err := e.Client.CoreV1().ConfigMaps(devcluster.SchedulerNamespace).Get(e.ctx, "pool-priority-status", metav1.GetOptions{})
		suite.NoError(t, err)
		return cm.ResourceVersion
	}
	e.staysFor(4, func() string { return "" })
	before, last, writes, began := content(), version(), 0, time.Now()
	e.staysFor(10, func() string { // each of which writes its status
		if now := version(); now != last {
			writes++
			last = now
		}
		if now := content(); now != before {
			return fmt.Sprintf("what is published changed although nothing did:\n%s\n%s", before, now)
		}
		if most := 1 + int(time.Since(began)/published.Heartbeat); writes > most {
			return fmt.Sprintf("the state was published %d times in %v although nothing changed", writes, time.Since(began))
		}
		return ""
	})
}

// TestProblems: what is wrong around the scheduler is in the log, in the published state, and in an event on the object.
func TestProblems(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.schedule("testdata/problems.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 9, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "": 1})
	noGroup := e.eventOn("kube-system", "ConfigMap", "cluster-autoscaler-status", "NoNodeGroup")
	if want := "pool user: no node group in the cluster autoscaler's status belongs to the pool: the status has " + e.pool("systempool").Group(); !strings.HasPrefix(noGroup, want) {
		t.Errorf("the event says %q, want %q…", noGroup, want)
	}
	node := e.nodesOf("userpool")[0].Name
	overlap := e.eventOn(metav1.NamespaceDefault, "Node", node, "InSeveralPools")
	if want := "node " + node + " matches the node selectors of the pools user, all; it belongs to the first"; overlap != want {
		t.Errorf("the event says %q, want %q", overlap, want)
	}
	e.logs(noGroup)
	e.logs(overlap)
	e.logs(`No node matches the pool's nodeSelector`)
	e.Eventually(10*time.Second, func() string {
		state, err := e.published()
		if err != nil {
			return err.Error()
		}
		if all := strings.Join(state.Problems, "\n"); !strings.Contains(all, noGroup) || !strings.Contains(all, overlap) {
			return fmt.Sprintf("published problems: %q", state.Problems)
		}
		return ""
	})
}

// TestObserve: nothing is held, no taint is kept, and what would be held is logged and counted. Pods that do not tolerate the
// virtual node stay off it.
func TestObserve(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	// A taint that an earlier, enforcing configuration left.
	controller := e.control(aksConfig)
	e.waitGated(true)
	controller.Stop()
	e.control("testdata/observe.yaml")
	e.waitGated(false)
	e.schedule("testdata/observe.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("tolerant", 12, "500m", suite.ToleratesVirtualNode))
	e.Lands(20*time.Second, "tolerant", map[string]int{"userpool": 4, "systempool": 4, "aci": 4})
	e.Create(suite.Deployment("plain", 1, "500m"))
	e.Lands(10*time.Second, "plain", map[string]int{"": 1})
	e.Keeps(3*time.Second, "plain", map[string]int{"": 1})
	e.logs("Observing: the gate would hold the pod back")
	e.hasMetrics(`pool_priority_gate_decisions_total{decision="closed",pool="aci",reason="PoolUnknown"}`, `pool_priority_held_pods{reason="PoolUnknown"} 0`)
	if e.isGated() {
		t.Error("the virtual node has the gate taint")
	}
	// A pod that was refused is not taken back.
	on := func(p corev1.Pod) bool { return p.Spec.NodeName == devcluster.VirtualNodeName }
	pods := e.Pods("tolerant")
	refused := &pods[slices.IndexFunc(pods, on)]
	refused.Status.Phase, refused.Status.Reason = corev1.PodPending, refusal.ReasonProviderFailed
	suite.Must(t)(e.Client.CoreV1().Pods(namespace).UpdateStatus(e.ctx, refused, metav1.UpdateOptions{}))
	e.Stays(3*time.Second, func() string {
		if p, err := e.Client.CoreV1().Pods(namespace).Get(e.ctx, refused.Name, metav1.GetOptions{}); err != nil || p.UID != refused.UID || p.DeletionTimestamp != nil {
			return fmt.Sprintf("the refused pod is gone: %v", err)
		}
		return ""
	})
}

// crash kills the scheduler and starts it again, every few seconds, until the function returns "".
func (e *env) crash(every time.Duration, timeout time.Duration, check func() string) {
	e.Helper()
	crashes := 0
	for deadline := time.Now().Add(timeout); ; {
		for next := time.Now().Add(every); time.Now().Before(next); time.Sleep(50 * time.Millisecond) {
			complaint := check()
			if complaint == "" {
				e.Logf("after %d crashes", crashes)
				return
			}
			if time.Now().After(deadline) {
				e.Fatalf("after %v and %d crashes: %s", timeout, crashes, complaint)
			}
		}
		e.scheduler.Kill()
		crashes++
		suite.NoError(e, e.scheduler.Restart())
	}
}

// burstAfter crashes the scheduler until a pod is on the virtual node, which must be after about the grace.
func (e *env) burstAfter(grace time.Duration, app string, since time.Time) {
	e.Helper()
	const every = 4 * time.Second
	e.crash(every, grace+2*every, func() string {
		if got := e.Placed(app); got["aci"] == 0 {
			return fmt.Sprintf("%v; %s", got, e.Said(app))
		}
		return ""
	})
	if took := time.Since(since); took < grace-time.Second {
		e.Errorf("burst after %v, within the grace of %v", took, grace)
	} else {
		e.Logf("burst after %v; the grace is %v", took.Round(100*time.Millisecond), grace)
	}
}

// TestCrashLoop: a scheduler that is killed every four seconds does not hold a pod for longer than its graces, and not for
// shorter either.
func TestCrashLoop(t *testing.T) {
	const grace = 15 * time.Second
	t.Run("while the pool is unknown", func(t *testing.T) {
		e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20)) // no autoscaler, no status
		e.schedule("testdata/crash-loop-unknown.yaml", suite.UserTier(1), suite.VirtualTier())
		started := time.Now()
		e.Create(suite.Deployment("web", 5, "500m"))
		e.burstAfter(grace, "web", started)
	})
	t.Run("while the autoscaler declines a pod that had a scheduling gate", func(t *testing.T) {
		e := start(t, fast(), vms("userpool", "user", 1, 1, 3, 20)) // the pool can grow
		e.schedule("testdata/crash-loop-decline.yaml", suite.UserTier(1), suite.VirtualTier())
		e.Create(suite.Deployment("web", 1, "500m", func(t *corev1.PodTemplateSpec) {
			t.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
			// A zone that the pool may have and the autoscaler's template has not.
			t.Spec.NodeSelector = nil
			t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"westeurope-1"}}}},
			}}}}
		}))
		e.Lands(10*time.Second, "web", map[string]int{"": 1})
		e.Keeps(6*time.Second, "web", map[string]int{"": 1}) // longer than declineGrace: the time with its gate does not count
		e.Eventually(10*time.Second, func() string {
			pods := e.Pods("web")
			if len(pods) == 0 {
				return "no pod"
			}
			pods[0].Spec.SchedulingGates = nil
			if _, err := e.Client.CoreV1().Pods(namespace).Update(e.ctx, &pods[0], metav1.UpdateOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
		e.burstAfter(grace, "web", time.Now())
	})
}
