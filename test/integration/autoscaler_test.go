package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// interval is the time between two loops of the autoscaler in these tests. In the recorded runs, the interval was 10 s,
// so 65 s without a change are 6 loops.
const interval = 300 * time.Millisecond

func stock(t *corev1.PodTemplateSpec) { t.Spec.SchedulerName = "stock" }

// autoscalerEnv sets up the cluster of the recorded runs. It has a user pool with 0 to 3 nodes and a system pool with 1
// or 2 nodes, each of 2 CPUs, and the system node is full. Pods request 1500m, and the default scheduler does not use
// the virtual node.
func autoscalerEnv(t *testing.T, unneeded time.Duration) *env {
	return autoscalerEnvWith(t, devcluster.AutoscalerOptions{Interval: interval, UnneededTime: unneeded})
}

func autoscalerEnvWith(t *testing.T, options devcluster.AutoscalerOptions) *env {
	e := start(t, &options, vms("userpool", "user", 0, 0, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	e.schedule("testdata/stock-scheduler.yaml")
	e.Create(suite.Deployment("filler", 1, "1900m", stock, suite.Selects(devcluster.ModeLabel, "system")))
	e.Lands(20*time.Second, "filler", map[string]int{"systempool": 1})
	return e
}

// targets returns the target sizes of the user and the system pool.
func (e *env) targets() string {
	return fmt.Sprintf("%d %d", e.pool("userpool").Target(), e.pool("systempool").Target())
}

func (e *env) scalesTo(want string) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		if got := e.targets(); got != want {
			return fmt.Sprintf("targets are %s, want %s; %s", got, want, e.Said(""))
		}
		return ""
	})
}

// TestRecordedRuns replays recorded runs of a real autoscaler that need an API server: events, drains, stops and
// deletions. TestRunA to TestRunN of test/devcluster/autoscaler/simcluster replay all recorded runs in memory.
func TestRecordedRuns(t *testing.T) {
	t.Parallel()
	t.Run("B, B2: pods without the toleration grow the pools, one a loop", func(t *testing.T) {
		t.Parallel()
		e := autoscalerEnv(t, 0)
		e.Create(suite.Deployment("pending", 1, "1500m", stock))
		e.scalesTo("1 1")
		want := "pod triggered scale-up: [{" + e.pool("userpool").Group() + " 0->1 (max: 3)}]"
		e.Eventually(5*time.Second, func() string {
			if got := e.Events("TriggeredScaleUp"); !slices.Contains(got, want) {
				return fmt.Sprintf("events %q, want %q", got, want)
			}
			return ""
		})
		e.Lands(10*time.Second, "pending", map[string]int{"userpool": 1})
		e.Scale("pending", 6)
		e.scalesTo("3 2")
		e.Lands(10*time.Second, "pending", map[string]int{"userpool": 3, "systempool": 1, "": 2})
		e.Eventually(5*time.Second, func() string {
			if got := e.Events("NotTriggerScaleUp"); !slices.Contains(got, "pod didn't trigger scale-up: 2 max node group size reached") {
				return fmt.Sprintf("events %q", got)
			}
			return ""
		})
	})
	t.Run("D1: a VM is drained onto the virtual node, whose pod then waits for ever", func(t *testing.T) {
		t.Parallel()
		e := autoscalerEnv(t, 5*interval)
		e.Create(suite.Deployment("seed", 1, "1500m", stock))
		e.Lands(20*time.Second, "seed", map[string]int{"userpool": 1})
		e.Create(suite.Deployment("roaming", 1, "300m", stock, suite.ToleratesVirtualNode))
		e.Lands(20*time.Second, "roaming", map[string]int{"userpool": 1})
		e.Scale("seed", 0)
		e.Lands(20*time.Second, "roaming", map[string]int{"": 1})
		e.scalesTo("0 1")
		e.staysFor(10, func() string {
			if got := e.targets(); got != "0 1" {
				return "scaled up to " + got
			}
			return ""
		})
	})
	t.Run("E: the status after a kill, a restart and a polite stop", func(t *testing.T) {
		t.Parallel()
		e := autoscalerEnv(t, 0)
		status := func() string {
			cm, err := e.Client.CoreV1().ConfigMaps("kube-system").Get(e.ctx, "cluster-autoscaler-status", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "missing"
			} else if err != nil {
				e.Fatal(err)
			}
			return cm.Data["status"]
		}
		first := status()
		e.Eventually(5*time.Second, func() string {
			if status() == first {
				return "the status does not change while the autoscaler idles"
			}
			return ""
		})
		e.Autoscaler.Kill()
		frozen := status()
		e.Stays(4*interval, func() string {
			if status() != frozen {
				return "the status changed after the kill"
			}
			return ""
		})
		must.NoError(e, e.Autoscaler.Start(e.ctx))
		if s := status(); !strings.Contains(s, "autoscalerStatus: Initializing") || strings.Contains(s, "nodeGroups") {
			e.Errorf("after the restart: %s", s)
		}
		e.Eventually(5*time.Second, func() string {
			if !strings.Contains(status(), "autoscalerStatus: Running") {
				return "not running after the restart"
			}
			return ""
		})
		must.NoError(e, e.Autoscaler.Stop(e.ctx))
		if status() != "missing" {
			e.Error("the status is there after a polite stop")
		}
	})
	t.Run("H: a removal is a taint, a delay and a deletion, and the status follows", func(t *testing.T) {
		t.Parallel()
		const delay = 2 * time.Second
		e := autoscalerEnvWith(t, devcluster.AutoscalerOptions{Interval: interval, UnneededTime: 5 * interval, DeleteDelay: delay})
		e.Create(suite.Deployment("pending", 4, "1500m", stock))
		e.Lands(20*time.Second, "pending", map[string]int{"userpool": 3, "systempool": 1})
		e.Scale("pending", 0)
		e.Scale("filler", 0)
		e.Eventually(20*time.Second, func() string { return e.tainted(4) })
		at := time.Now()
		e.staysFor(2, func() string { // the autoscaler's loops go on, and its status shows the pools at their maxima
			if got := e.statusTargets(); got != "3 2" {
				return "the status says " + got + " before the deletion"
			}
			return e.tainted(4)
		})
		e.Eventually(10*time.Second, func() string {
			if n := len(e.nodesOf("userpool")) + len(e.nodesOf("systempool")); n != 1 {
				return fmt.Sprintf("%d VMs are there", n)
			}
			return ""
		})
		if d := time.Since(at); d < delay-500*time.Millisecond {
			t.Errorf("the VMs went %v after the taint", d)
		}
		e.Eventually(5*time.Second, func() string {
			if got := e.statusTargets(); got != "0 1" {
				return "the status says " + got + " after the deletion"
			}
			return ""
		})
	})
}

// status returns the status that the autoscaler wrote. Before the first loop has ended, the status has no node groups.
func (e *env) status() autoscaler.Status {
	e.Helper()
	var status autoscaler.Status
	cm, err := e.Client.CoreV1().ConfigMaps(autoscaler.StatusNamespace).Get(e.ctx, autoscaler.StatusName, metav1.GetOptions{})
	if err == nil {
		err = yaml.Unmarshal([]byte(cm.Data["status"]), &status)
	}
	must.NoError(e, err)
	return status
}

// statusTargets returns the target sizes of the user and the system pool in the status.
func (e *env) statusTargets() string {
	e.Helper()
	status := e.status()
	user, system := status.Of(e.pool("userpool").Group()), status.Of(e.pool("systempool").Group())
	if user == nil || system == nil {
		return "nothing"
	}
	return fmt.Sprintf("%d %d", user.Health.CloudProviderTarget, system.Health.CloudProviderTarget)
}

// tainted returns "" if want nodes have the taint of nodes that are about to be removed. Otherwise it returns an error
// text.
func (e *env) tainted(want int) string {
	e.Helper()
	n := 0
	for _, node := range append(e.nodesOf("userpool"), e.nodesOf("systempool")...) {
		if autoscaler.HasTaint(&node, autoscaler.ToBeDeletedTaint) {
			n++
		}
	}
	if n != want {
		return fmt.Sprintf("%d nodes are about to be removed, not %d", n, want)
	}
	return ""
}
