package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// publishesOverride waits until the published state has the override want and a problem with this text. If problem is
// "", the published state must have no problem with the ConfigMap.
func (e *env) publishesOverride(want gate.OverriddenGate, problem string) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		state, err := e.published()
		if err != nil {
			return err.Error()
		}
		if problems := strings.Join(state.View.Problems, "\n"); state.View.Override.Gate != want || !strings.Contains(problems, problem) || problem == "" && strings.Contains(problems, gate.OverrideConfigMap) {
			return fmt.Sprintf("published: %q and %q, want %q and %q", state.View.Override, problems, want, problem)
		}
		return ""
	})
}

// TestEmergency: an operator with rights on only the override's ConfigMap closes and opens the gate, also for pods that
// select the virtual node. The override stays in force after fail-overs, even if the ConfigMap can no longer be read.
// (The budget and opt-outs also stay in force: TestOverride in package gate.)
func TestEmergency(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20)) // the configuration allows 3 VMs
	const config, ns = "testdata/failover.yaml", devcluster.SchedulerNamespace
	data := must.ReadFile(t, config)
	second := must.WriteFile(t, "second.yaml", data)
	e.schedule(config, suite.UserTier(3), suite.VirtualTier())
	leader := e.scheduler
	standby := must.Get(e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), second, e.rbac))(t)
	t.Cleanup(func() { standby.Stop(); leader.Stop(); e.checkLogOf(standby) })
	e.publishesOverride("", "")

	// The commands of docs/emergency.md, which let an account write this ConfigMap and no other.
	for _, args := range [][]string{
		{"create", "role", "pool-priority-override", "--verb=get,create,update,patch,delete", "--resource=configmaps", "--resource-name=" + gate.OverrideConfigMap},
		{"create", "rolebinding", "pool-priority-override", "--role=pool-priority-override", "--serviceaccount=" + ns + ":on-call"},
	} {
		if out, err := e.kubectl("", "", append([]string{"-n", ns}, args...)...); err != nil {
			t.Fatal(err, out)
		}
	}
	onCall := e.account(ns, "on-call")
	say := func(name, words string) (string, error) {
		return e.kubectl(onCall, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+"}\ndata: {"+words+"}\n", "-n", ns, "apply", "--server-side", "-f", "-")
	}
	mustSay := func(words string) {
		t.Helper()
		if out, err := say(gate.OverrideConfigMap, words); err != nil {
			t.Fatal(err, out)
		}
	}
	if out, err := say("another", "gate: Closed"); err == nil {
		t.Errorf("it may write another ConfigMap: %s", out)
	}

	mustSay("gate: Closed")
	e.publishesOverride(gate.OverrideClosed, "")
	e.eventOn(ns, "ConfigMap", gate.OverrideConfigMap, "GateOverridden")
	e.Create(suite.Deployment("asks", 2, "50m", endsFast, suite.Selects("type", "virtual-kubelet")))
	e.Create(suite.Deployment("web", 100, "50m", endsFast))
	closed := func() string {
		if got := e.Placed(""); got["aci"] > 0 {
			return fmt.Sprintf("pods were let in: %v", got)
		}
		return ""
	}
	toldClosed := func() {
		t.Helper()
		e.Eventually(30*time.Second, func() string {
			if complaint := closed(); complaint != "" {
				t.Fatal(complaint)
			}
			if said := e.Said("asks"); !strings.Contains(said, gate.ReasonOverridden.Sentence) {
				return "the pod was told " + said
			}
			return ""
		})
	}
	toldClosed()
	// failsOver kills the leader, waits until the standby leads and has tried to schedule a pod, and starts the killed
	// process again.
	round := 0
	failsOver := func() {
		t.Helper()
		before := e.holder()
		must.NoError(t, syscall.Kill(leader.PID(), syscall.SIGKILL))
		e.newLeader(20*time.Second, before)
		round++
		name := fmt.Sprint("asks-", round)
		e.Create(suite.Deployment(name, 1, "50m", endsFast, suite.Selects("type", "virtual-kubelet")))
		e.Eventually(20*time.Second, func() string {
			if complaint := closed(); complaint != "" {
				t.Fatal(complaint)
			}
			if said := e.Said(name); !strings.Contains(said, gate.ReasonOverridden.Sentence) {
				return "after a fail-over, the pod was told " + said
			}
			return ""
		})
		<-leader.Done()
		must.NoError(t, leader.Restart())
		leader, standby = standby, leader
		e.scheduler = leader
	}
	failsOver()
	mustSay("gate: close")
	e.publishesOverride(gate.OverrideClosed, `gate: the value is "close"; set Closed or Open. Until it is corrected, the override that was read before stays in force: Closed`)
	e.eventOn(ns, "ConfigMap", gate.OverrideConfigMap, "GateOverrideUnreadable")
	failsOver() // the first new leader read the override while it was readable, the second did not
	failsOver()
	e.publishesOverride(gate.OverrideClosed, `gate: the value is "close"`)

	began := time.Now()
	mustSay("gate: Open")
	e.Eventually(10*time.Second, func() string {
		if got := e.Placed(""); got["aci"] == 0 {
			return fmt.Sprintf("none was let in: %v", got)
		}
		return ""
	})
	t.Logf("the first pods were let in at most %v after kubectl was called", time.Since(began).Round(10*time.Millisecond))
	e.publishesOverride(gate.OverrideOpen, "")
	e.hasMetrics(`pool_priority_gate_override{gate="Open"} 1`, `pool_priority_gate_decisions_total{decision="open",pool="aci",reason="OverriddenOpen"}`)

	if out, err := e.kubectl(onCall, "", "-n", ns, "delete", "configmap", gate.OverrideConfigMap); err != nil {
		t.Fatal(err, out)
	}
	e.publishesOverride("", "")
	e.Create(suite.Deployment("later", 1, "50m", endsFast))
	e.Told("later", gate.ReasonCanGrow.Sentence)
}
