package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

// TestFailOver: whichever way the leader goes in the middle of 205 pods, a standby with the lease settings that ship takes over in
// time, all pods run but the five that are over the burst pool's budget, and the order is kept. A leader that is thawed ends, and the
// budget holds.
func TestFailOver(t *testing.T) {
	e := start(t, nil, vms("userpool", "user", 3, 3, 3, 20), vms("systempool", "system", 1, 1, 1, 10))
	const config = "testdata/failover.yaml"
	data, err := os.ReadFile(config)
	suite.NoError(t, err)
	second := filepath.Join(t.TempDir(), "second.yaml")
	suite.NoError(t, os.WriteFile(second, data, 0o600))
	holder := func() string {
		lease, err := e.Client.CoordinationV1().Leases(devcluster.SchedulerNamespace).Get(e.ctx, devcluster.SchedulerName, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	changes := func(from string, within time.Duration) time.Duration {
		t.Helper()
		began := time.Now()
		e.Eventually(within, func() string {
			if now := holder(); now == "" || now == from {
				return fmt.Sprintf("the lease is held by %q", now)
			}
			return ""
		})
		return time.Since(began)
	}
	e.schedule(config, suite.UserTier(3), suite.SystemTier(1), suite.VirtualTier())
	e.Referee.BindingLag = 5 * time.Second // the configuration leaves the rate of requests at its default
	changes("", 20*time.Second)
	standby, err := e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), second, e.rbac)
	suite.NoError(t, err)
	t.Cleanup(func() { standby.Stop(); e.checkLogOf(standby) })
	leader := e.scheduler
	judged := 0
	wanted := map[string]int{"userpool": 120, "systempool": 40, "aci": 40, "": 5}
	for _, tc := range []struct {
		name   string
		signal syscall.Signal
		within time.Duration
	}{
		{"deleted", syscall.SIGTERM, 5 * time.Second},
		{"killed", syscall.SIGKILL, 15 * time.Second},
		{"frozen", syscall.SIGSTOP, 15 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := e.of(t)
			before := holder()
			e.Create(suite.Deployment(tc.name, 205, "50m", endsFast))
			bound := 0
			for deadline := time.Now().Add(20 * time.Second); bound < 20; time.Sleep(5 * time.Millisecond) {
				bound = 0
				for _, p := range e.Pods(tc.name) {
					if p.Spec.NodeName != "" {
						bound++
					}
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d pods are bound", bound)
				}
			}
			suite.NoError(t, syscall.Kill(leader.PID(), tc.signal))
			took := changes(before, tc.within)
			e.Lands(60*time.Second, tc.name, wanted)
			t.Logf("%s with %d pods bound: the standby took over after %v", tc.name, bound, took.Round(100*time.Millisecond))
			judged += 200
			e.RightOrder(judged)
			if tc.signal == syscall.SIGSTOP {
				suite.NoError(t, syscall.Kill(leader.PID(), syscall.SIGCONT))
			}
			select {
			case <-leader.Done():
			case <-time.After(10 * time.Second):
				t.Error("the leader that was thawed goes on")
			}
			if got := e.Placed(tc.name); !suite.Equal(got, wanted) {
				t.Errorf("after all: %v, want %v", got, wanted)
			}
			suite.NoError(t, leader.Restart())
			leader, standby = standby, leader
			suite.NoError(t, e.Client.AppsV1().Deployments(namespace).Delete(e.ctx, tc.name, metav1.DeleteOptions{}))
			e.Eventually(30*time.Second, func() string {
				if n := len(e.Pods("")); n > 0 {
					return fmt.Sprintf("%d pods are left", n)
				}
				return ""
			})
			time.Sleep(3 * time.Second) // the standby has started
		})
	}
	t.Run("frozen while it preempts", func(t *testing.T) {
		e.of(t).preemptsOnce(leader, func() { changes(holder(), 15*time.Second) })
	})
}

// preemptsOnce freezes the leader while pods of high priority take the places of others, and thaws it when the standby, for which
// takeOver waits, has done the rest: the leader that is thawed evicts nobody.
func (e *env) preemptsOnce(leader *devcluster.Component, takeOver func()) {
	const low, high, vms = "low", 40, 160
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}
	suite.Must(e)(e.Client.SchedulingV1().PriorityClasses().Create(e.ctx, class, metav1.CreateOptions{}))
	e.Create(suite.Deployment(low, vms, "50m", endsFast))
	e.Lands(60*time.Second, low, map[string]int{"userpool": 120, "systempool": 40})
	first := map[types.UID]bool{}
	for _, p := range e.Pods(low) {
		first[p.UID] = true
	}
	survivors := func() []string { // of the first ones, by name
		var names []string
		for _, p := range e.Pods(low) {
			if first[p.UID] && p.DeletionTimestamp == nil {
				names = append(names, p.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	e.Create(suite.Deployment("high", high, "50m", endsFast, func(t *corev1.PodTemplateSpec) {
		t.Annotations = map[string]string{gate.BurstAnnotation: gate.BurstNever}
		t.Spec.PriorityClassName = class.Name
	}))
	e.Eventually(20*time.Second, func() string {
		if gone := vms - len(survivors()); gone < 5 {
			return fmt.Sprintf("%d pods are preempted", gone)
		}
		return ""
	})
	suite.NoError(e, syscall.Kill(leader.PID(), syscall.SIGSTOP))
	before := len(survivors())
	takeOver()
	e.Eventually(60*time.Second, func() string {
		if h, l := e.Placed("high"), e.Placed(low); h["userpool"]+h["systempool"] != high || l["userpool"]+l["systempool"] != vms-high || l["aci"] != high {
			return fmt.Sprintf("of high priority %v, others %v", h, l)
		}
		return ""
	})
	left := survivors()
	e.Logf("frozen when %d of %d were preempted; in the end %d were", vms-before, high, vms-len(left))
	// Places that it had made free and not written down for whom may have been lost.
	if got := vms - len(left); got < high || got > high+10 {
		e.Errorf("%d pods were preempted for %d", got, high)
	}
	suite.NoError(e, syscall.Kill(leader.PID(), syscall.SIGCONT))
	select {
	case <-leader.Done():
	case <-time.After(10 * time.Second):
		e.Error("the leader that was thawed goes on")
	}
	if after := survivors(); !slices.Equal(after, left) {
		e.Errorf("%d pods are left after the leader was thawed, %d before", len(after), len(left))
	}
}
