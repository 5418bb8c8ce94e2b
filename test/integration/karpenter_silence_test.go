package integration

import (
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

var silent = flag.Duration("silent", 40*time.Second, "how long Karpenter does nothing in TestKarpenterSilence, and for how long it is killed every 20 s")

// TestKarpenterSilence: a pod bursts soon if Karpenter says that it cannot place the pod. It does not burst while
// Karpenter is silent or is killed again and again, and it gets its VM when Karpenter is back. The scheduler says that
// Karpenter does not renew its Lease.
func TestKarpenterSilence(t *testing.T) {
	t.Parallel()
	config := replaced(t, karpenterConfig, "      pools:\n", "      capacity: {declineGrace: 10s, staleAfter: 30s}\n      pools:\n")
	e := startKarpenterWith(t, config, karpenterRBAC, "testdata/nodepool.yaml", instanceType("s-1", 1))
	e.waitGated(true)
	e.sees(nodegroups.CanGrow) // what Karpenter writes before its NodePool is counted does not count
	load := func(name, memory string) *appsv1.Deployment {
		d := suite.Load(t, "testdata/burst-required.yaml")
		labels := map[string]string{"app": name}
		d.Name, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = name, labels, labels
		d.Spec.Template.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse(memory)
		d.Spec.Template.Spec.Containers[0].Resources.Limits = nil
		return d
	}
	e.Create(load("large", "12Gi")) // a VM has 8Gi
	e.Lands(60*time.Second, "large", map[string]int{"aci": 1})

	must.NoError(t, syscall.Kill(e.karpenter.PID(), syscall.SIGSTOP))
	e.Create(load("web", "128Mi"))
	notBurst := func() string {
		if n := e.Placed("web")["aci"]; n > 0 {
			return fmt.Sprintf("%d pods burst although the NodePool can grow", n)
		}
		return ""
	}
	e.Stays(*silent, notBurst)
	e.Eventually(30*time.Second, func() string {
		state, err := e.published()
		if err != nil {
			return err.Error()
		}
		if p := state.View.Capacity.Pools[0]; p.Reason.Code != "KarpenterDead" {
			return fmt.Sprintf("the pool is %s by %s", p.State, p.Reason)
		}
		return ""
	})
	must.NoError(t, syscall.Kill(e.karpenter.PID(), syscall.SIGCONT))
	e.Lands(60*time.Second, "web", map[string]int{"agentpool": 1})

	e.Scale("web", 12) // two VMs
	for began, i := time.Now(), 0; time.Since(began) < *silent; i++ {
		if i%2 == 0 {
			e.karpenter.Stop() // releases the Lease, so that the next process leads at once
		} else {
			e.karpenter.Kill()
		}
		must.NoError(t, e.karpenter.Restart())
		e.Stays(20*time.Second, notBurst)
	}
	e.Lands(90*time.Second, "web", map[string]int{"agentpool": 12})
}

// TestKarpenterSilenceWithoutLease: without the right to read Karpenter's Lease, a pod bursts 5 to 6 minutes after
// Karpenter fell silent. The Lease of the configuration is one that the scheduler may not read.
func TestKarpenterSilenceWithoutLease(t *testing.T) {
	if *silent < 5*time.Minute {
		t.Skip("takes 6 minutes: make test-long runs it, with -silent 10m")
	}
	t.Parallel()
	config := replaced(t, karpenterConfig, "      pools:\n", "      capacity: {karpenterLease: kube-system/another}\n      pools:\n")
	e := startKarpenter(t, config)
	e.refused = true
	e.waitGated(true)
	e.sees(nodegroups.CanGrow)
	must.NoError(t, syscall.Kill(e.karpenter.PID(), syscall.SIGSTOP))
	began := time.Now()
	e.Create(suite.Load(t, "testdata/burst-required.yaml"))
	bursts := func() string {
		if n := e.Placed("burst-required")["aci"]; n != 1 {
			return fmt.Sprintf("%d pods have burst after %v; %s", n, time.Since(began), e.Said("burst-required"))
		}
		return ""
	}
	e.Eventually(6*time.Minute, bursts)
	if took := time.Since(began); took < 5*time.Minute {
		t.Errorf("it burst after %v", took)
	}
	must.NoError(t, syscall.Kill(e.karpenter.PID(), syscall.SIGCONT))
}

// sees waits until the scheduler has published this state of the first pool.
func (e *env) sees(want nodegroups.State) {
	e.Helper()
	e.Eventually(time.Minute, func() string {
		state, err := e.published()
		if err != nil || state.View.Capacity.Pools[0].State != want {
			return fmt.Sprintf("published: %+v, %v", state, err)
		}
		return ""
	})
}
