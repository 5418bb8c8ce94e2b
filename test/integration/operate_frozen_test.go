package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestFrozenWhileItPreempts: the leader is frozen while pods of high priority preempt others. A standby with the
// shipped lease settings schedules the remaining pods. Then the old leader is resumed. It must not preempt any pod, and
// must exit. (test/e2e deletes, kills and freezes leaders.)
func TestFrozenWhileItPreempts(t *testing.T) {
	e := start(t, nil, vms("userpool", "user", 3, 3, 3, 20), vms("systempool", "system", 1, 1, 1, 10))
	const config = "testdata/failover.yaml"
	data := must.ReadFile(t, config)
	second := must.WriteFile(t, "second.yaml", data)
	e.schedule(config, suite.UserTier(3), suite.SystemTier(1), suite.VirtualTier())
	e.newLeader(15*time.Second, "")
	standby := must.Get(e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), second, e.rbac))(t)
	t.Cleanup(func() { standby.Stop(); e.checkLogOf(standby) })
	time.Sleep(3 * time.Second) // the standby has started
	const low, high, places = "low", 40, 160
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}
	must.Do(t)(e.Client.SchedulingV1().PriorityClasses().Create(e.ctx, class, metav1.CreateOptions{}))
	e.Create(suite.Deployment(low, places, "50m", endsFast))
	e.Lands(60*time.Second, low, map[string]int{"userpool": 120, "systempool": 40})
	first := map[types.UID]bool{}
	for _, p := range e.Pods(low) {
		first[p.UID] = true
	}
	survivors := func() []string { // the names of the first pods that are left
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
		t.Annotations = map[string]string{pool.BurstAnnotation: pool.BurstNever}
		t.Spec.PriorityClassName = class.Name
	}))
	e.Eventually(20*time.Second, func() string {
		if gone := places - len(survivors()); gone < 5 {
			return fmt.Sprintf("%d pods are preempted", gone)
		}
		return ""
	})
	leader := e.holder()
	must.NoError(t, syscall.Kill(e.scheduler.PID(), syscall.SIGSTOP))
	before := len(survivors())
	e.newLeader(15*time.Second, leader)
	e.Eventually(60*time.Second, func() string {
		if h, l := e.Placed("high"), e.Placed(low); h["userpool"]+h["systempool"] != high || l["userpool"]+l["systempool"] != places-high || l["aci"] != high {
			return fmt.Sprintf("of high priority %v, others %v", h, l)
		}
		return ""
	})
	left := survivors()
	e.Logf("frozen when %d of %d were preempted; in the end %d were", places-before, high, places-len(left))
	// Some victims may be extra: the leader had evicted them, but had not yet nominated a pod for their node.
	if got := places - len(left); got < high || got > high+10 {
		e.Errorf("%d pods were preempted for %d", got, high)
	}
	must.NoError(t, syscall.Kill(e.scheduler.PID(), syscall.SIGCONT))
	select {
	case <-e.scheduler.Done():
	case <-time.After(10 * time.Second):
		e.Error("the leader that was thawed goes on")
	}
	if after := survivors(); !slices.Equal(after, left) {
		e.Errorf("%d pods are left after the leader was thawed, %d before", len(after), len(left))
	}
}

// TestBusyAPIServer: while requests of other ServiceAccounts fill the priority level workload-low, the scheduler and
// the controller keep their leases for 20 s, and a pod is bound. Without our FlowSchemas, neither renews its lease
// within renewDeadline, 7 s, because the renewals wait among these requests: both processes end.
func TestBusyAPIServer(t *testing.T) {
	t.Parallel()
	e := startWith(t, devcluster.Options{Pools: []devcluster.Pool{vms("userpool", "user", 1, 1, 1, 20)},
		APIServerArgs: []string{"--max-requests-inflight=20", "--max-mutating-requests-inflight=10"}})
	must.NoError(t, e.ApplyFile(e.ctx, root+"/manifests/base/flowschema.yaml"))
	e.schedule("testdata/failover.yaml", suite.UserTier(1), suite.VirtualTier())
	e.control("testdata/failover.yaml")
	renewed := func() string {
		for _, name := range []string{devcluster.SchedulerName, devcluster.ControllerName} {
			lease, err := e.Client.CoordinationV1().Leases(devcluster.SchedulerNamespace).Get(e.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if age := time.Since(lease.Spec.RenewTime.Time); *lease.Spec.LeaseTransitions > 0 || age > 7*time.Second {
				return fmt.Sprintf("the lease %s was renewed %v ago, and changed its holder %d times", name, age, *lease.Spec.LeaseTransitions)
			}
		}
		return ""
	}
	e.Eventually(20*time.Second, renewed)

	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	must.NoError(t, e.ApplyFile(e.ctx, must.WriteFile(t, "busy.yaml", bytes.ReplaceAll(must.ReadFile(t, "testdata/busy.yaml"), []byte("SILENT"), []byte(silent.Addr().String())))))
	users, config := make([]typedcorev1.ConfigMapInterface, 400), rest.CopyConfig(e.Config)
	for i := range users { // not as the administrator, whose requests are exempt from priority and fairness
		config.Impersonate = rest.ImpersonationConfig{UserName: fmt.Sprintf("system:serviceaccount:%s:busy-%d", namespace, i), Groups: []string{"system:serviceaccounts", "system:authenticated"}}
		users[i] = must.Get(typedcorev1.NewForConfig(config))(t).ConfigMaps(namespace)
		go func() {
			for e.ctx.Err() == nil {
				_, _ = users[i].Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			}
		}()
	}
	e.Stays(20*time.Second, renewed)
	ctx, cancel := context.WithTimeout(e.ctx, 7*time.Second)
	defer cancel()
	if _, err := users[0].List(ctx, metav1.ListOptions{}); err == nil {
		t.Fatal("the API server is not busy: it answered another ServiceAccount")
	}
	e.Create(suite.Deployment("web", 1, "100m"))
	e.Lands(10*time.Second, "web", map[string]int{"userpool": 1})
}
