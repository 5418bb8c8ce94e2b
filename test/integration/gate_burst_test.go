package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestBudgetAndWaitLimit: the budget is never exceeded, although many pods are scheduled at once and the scheduler is
// killed in between. A pod that waits for the budget is requeued when a burst pod ends, and when a VM has free
// capacity. waitLimit opens the gate although the pool could grow.
func TestBudgetAndWaitLimit(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 0, 2, 20))
	e.schedule("testdata/budget.yaml", suite.UserTier(1), suite.VirtualTier())
	most := 0
	within := func() string {
		got := e.Placed("web")
		most = max(most, got["aci"])
		if got["aci"] > 20 {
			return fmt.Sprintf("over the budget: %v", got)
		}
		return ""
	}
	created := time.Now()
	e.Create(suite.Deployment("web", 60, "500m", endsFast))
	e.Stays(3*time.Second, func() string {
		if got := e.Placed("web"); got["aci"] > 0 {
			return fmt.Sprintf("burst after %v, before waitLimit, while the pool can grow: %v", time.Since(created), got)
		}
		return ""
	})
	e.Eventually(20*time.Second, func() string {
		if complaint := within(); complaint != "" {
			e.Fatal(complaint)
		}
		if most == 0 {
			return "no pod bursts; " + e.Said("web")
		}
		return ""
	})
	e.scheduler.Kill()
	must.NoError(t, e.scheduler.Restart())
	e.Lands(30*time.Second, "web", map[string]int{"userpool": 4, "aci": 20, "": 36})
	e.Stays(2*time.Second, within)
	e.hasMetrics(`pool_priority_held_pods{reason="BudgetSpent"} 36`)

	// When a burst pod ends, another pod bursts at once. A deleted pod on the virtual node uses the budget until its
	// grace period has passed.
	for _, p := range e.Pods("web") {
		if strings.HasPrefix(p.Spec.NodeName, "virtual-node") {
			must.NoError(t, e.Client.CoreV1().Pods(namespace).Delete(e.ctx, p.Name, metav1.DeleteOptions{}))
			break
		}
	}
	e.Eventually(10*time.Second, func() string {
		if complaint := within(); complaint != "" {
			e.Fatal(complaint)
		}
		if got := e.Placed("web"); got["aci"] != 20 {
			return fmt.Sprintf("after the end of a burst pod: %v", got)
		}
		return ""
	})
	// The waiting pods are also requeued for a new VM.
	e.pool("userpool").Grow(1)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 8, "aci": 20, "": 32})
}

// TestCreates: a burst pool gets no more pods than its rate allows, also after pods have gone and the scheduler was
// killed.
func TestCreates(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.schedule(replaced(t, "testdata/fixed.yaml", "creates: {per5Minutes: 0, perHour: 0}", "creates: {per5Minutes: 5}"), suite.UserTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 12, "500m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "aci": 5, "": 3})
	e.Told("web", gate.ReasonCreateRate.Sentence)
	for _, p := range e.Pods("web") {
		if p.Spec.NodeName == devcluster.VirtualNodeName {
			must.NoError(t, e.Client.CoreV1().Pods(namespace).Delete(e.ctx, p.Name, metav1.DeleteOptions{}))
		}
	}
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "": 8})
	e.hasMetrics(`pool_priority_held_pods{reason="CreateRate"} 8`)
	var killed time.Time
	publishes := func() string {
		status, err := e.published()
		if err != nil || status.View == nil || len(status.View.Creates("aci")) != 5 || !status.Memory.Written.After(killed) {
			return fmt.Sprintf("published: %+v, %v", status, err)
		}
		return ""
	}
	e.Eventually(20*time.Second, publishes)
	killed = time.Now()
	e.scheduler.Kill()
	must.NoError(t, e.scheduler.Restart())
	e.Eventually(30*time.Second, publishes)
	e.Keeps(3*time.Second, "web", map[string]int{"userpool": 4, "": 8})
	groups := map[types.UID]bool{} // of one that is deleted early, the connector may repeat the PUT
	for _, put := range e.VirtualNode.Azure().Puts() {
		groups[put.Spec.UID] = true
	}
	if len(groups) != 5 {
		t.Errorf("%d container groups were created", len(groups))
	}
}
