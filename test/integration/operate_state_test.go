package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestPublishedState: the ConfigMap has the state of each pool, the reason of the state, and when the state began. The
// metrics have the states and the reasons.
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
		for i, p := range state.View.Capacity.Pools[:2] {
			got += fmt.Sprintf("%s %s %s %d;", state.View.Args.Pools[i].Name, p.State, p.Reason.Code, p.Nodes)
			if p.Since.IsZero() || p.Reason.Sentence == "" || p.Reason.Detail == "" {
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
		`pool_priority_gate_decisions_total{decision="closed",pool="aci",reason="Pool`, // which of them a cycle saw depends on when it ran
		`pool_priority_gate_decisions_total{decision="open",pool="aci",reason="Open"}`, `pool_priority_held_pods{reason="PoolCanGrow"} 0`,
		`pool_priority_placements_total{pool="aci",reason="Open"} 1`, `pool_priority_pool_pods{pool="aci"} 1`, "pool_priority_order_violations_total 0")
	// While nothing changes, the scheduler updates only the ConfigMap's write time, once a minute.
	content := func() string {
		data := must.Get(must.Get(e.published())(t).Quiet().Encode())(t)
		return fmt.Sprint(data)
	}
	version := func() string {
		cm := must.Get(e.Client.CoreV1().ConfigMaps(devcluster.SchedulerNamespace).Get(e.ctx, "pool-priority-status", metav1.GetOptions{}))(t)
		return cm.ResourceVersion
	}
	e.staysFor(4, func() string { return "" })
	before, last, writes, began := content(), version(), 0, time.Now()
	e.staysFor(10, func() string { // the autoscaler writes its status in each loop
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

// TestProblems: a problem in the cluster is in the log, in the published state, and in an event on its object.
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
		if all := strings.Join(state.View.Problems, "\n"); !strings.Contains(all, noGroup) || !strings.Contains(all, overlap) {
			return fmt.Sprintf("published problems: %q", state.View.Problems)
		}
		return ""
	})
}
