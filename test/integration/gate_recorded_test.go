package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// noneBursts waits until the pods are placed as wanted. It fails the test if one of them is on the virtual node before
// that.
func (e *env) noneBursts(timeout time.Duration, app string, want map[string]int) {
	e.Helper()
	e.Eventually(timeout, func() string {
		got := e.Placed(app)
		if got["aci"] > 0 {
			e.Fatalf("burst while a pool can grow: %v; the status says %s", got, e.statusTargets())
		}
		if !suite.Equal(got, want) {
			return fmt.Sprintf("%v, want %v; %s", got, want, e.Said(app))
		}
		return ""
	})
}

// TestGateAtScaleIn is the recorded run H with our scheduler. A spike of pods comes during a scale-in. The VMs cannot
// be used, and the autoscaler's status says "at max". No pod bursts, because the pools can grow once the VMs are gone.
func TestGateAtScaleIn(t *testing.T) {
	t.Parallel()
	const delay = 2 * time.Second
	for _, tc := range []struct {
		name          string
		deleted       bool // the spike comes when the VMs are deleted, not when they are tainted
		linger, stale time.Duration
	}{
		{name: "at the taint"},
		{name: "at the deletion", deleted: true},
		{name: "at the deletion, with Nodes that linger", deleted: true, linger: 3 * time.Second},
		{name: "at the deletion, with sizes that are stale", deleted: true, stale: 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			user, system := vms("userpool", "user", 0, 0, 3, 20), vms("systempool", "system", 1, 1, 2, 10)
			user.Linger.Duration, system.Linger.Duration = tc.linger, tc.linger
			e := start(t, &devcluster.AutoscalerOptions{
				Interval: time.Second, UnneededTime: 3 * time.Second, DelayAfterAdd: time.Second, DeleteDelay: delay, SizeCache: tc.stale,
			}, user, system)
			e.schedule(aksConfig, suite.UserTier(3), suite.SystemTier(2), suite.VirtualTier())
			all := map[string]int{"userpool": 3, "systempool": 2}
			e.Create(suite.Deployment("web", 5, "1500m"))
			e.noneBursts(30*time.Second, "web", all)
			// If a pod is deleted before KWOK holds the lease of the pod's node, KWOK may never end the pod.
			e.Eventually(20*time.Second, func() string { return e.notReady("web") })
			e.Scale("web", 0)
			e.Eventually(30*time.Second, func() string { return e.tainted(4) })
			if tc.deleted {
				e.Eventually(10*time.Second, func() string {
					if got := e.targets(); got != "0 1" {
						return "the targets are " + got
					}
					return ""
				})
			}
			e.Scale("web", 5)
			e.noneBursts(40*time.Second, "web", all)
		})
	}
}

// TestGateBesideTaintedGroup is the recorded run L with our scheduler. The autoscaler never grows a tainted node group
// for pods without its toleration. So the group holds these pods for at most declineGrace and two loops. This applies
// to a group without nodes, and to a group that grows repeatedly for other pods.
func TestGateBesideTaintedGroup(t *testing.T) {
	t.Parallel()
	const grace, slack = 6 * time.Second, 3 * time.Second // the slack is for a busy machine
	for name, grows := range map[string]bool{"at zero": false, "that grows again and again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gpu := vms("gpupool", "user", 0, 0, 40, 30)
			gpu.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}} // with an unknown key, the taint of the first node could be a startup taint
			options := fast()
			options.NoEvents = true // see TestGateByEvent
			e := start(t, options, vms("userpool", "user", 0, 0, 3, 20), vms("systempool", "system", 1, 1, 2, 10), gpu)
			e.schedule("testdata/aks-decline-grace.yaml", suite.UserTier(3), suite.SystemTier(2), suite.VirtualTier())
			e.Create(suite.Deployment("full", 5, "1500m"))
			e.Lands(30*time.Second, "full", map[string]int{"userpool": 3, "systempool": 2})
			e.Create(suite.Deployment("train", 0, "1500m", suite.Selects(devcluster.AgentPoolLabel, "gpupool"), func(t *corev1.PodTemplateSpec) {
				t.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
			}))
			began, trains, last := time.Now(), int32(0), time.Time{}
			e.Create(suite.Deployment("plain", 3, "1500m"))
			e.Eventually(grace+2*500*time.Millisecond+slack, func() string {
				if grows && time.Since(last) > grace/2 {
					trains, last = trains+1, time.Now()
					e.Scale("train", trains)
				}
				if got := e.Placed("plain"); got["aci"] != 3 {
					return fmt.Sprintf("%v; %s", got, e.Said("plain"))
				}
				return ""
			})
			t.Logf("burst after %v", time.Since(began).Round(100*time.Millisecond))
		})
	}
}

// eventLoop is the time between two loops of the autoscaler in tests of its events. A pod that an event declines bursts
// within soon. Without an event, it waits for declineGrace, 60 s, and four loops.
const eventLoop, soon = 3 * time.Second, 2*eventLoop + 5*time.Second

// taintedPool returns a pool without nodes, whose taint is not known to the scheduler.
func taintedPool(name string) devcluster.Pool {
	p := vms(name, "user", 0, 0, 4, 30)
	p.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
	return p
}

// held waits until this number of pods of the namespace are unschedulable, and returns them.
func (e *env) held(namespace string, n int) (held []corev1.Pod) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		held = nil
		for _, p := range must.Get(e.Client.CoreV1().Pods(namespace).List(e.ctx, metav1.ListOptions{}))(e).Items {
			if !gate.UnschedulableSince(&p).IsZero() {
				held = append(held, p)
			}
		}
		if len(held) != n {
			return fmt.Sprintf("%d pods are unschedulable, want %d", len(held), n)
		}
		return ""
	})
	return held
}

// TestGateByEvent: VMs are full, and the only group that can grow is tainted and never had a node. The autoscaler's event
// on a pod lets the pod burst within two loops. An event that might mean less than all groups, and no event, do not.
func TestGateByEvent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, event string // with an event, the autoscaler writes none
		silent      bool
		groups      []devcluster.Pool
		want        map[string]int
	}{
		{name: "with the event", groups: []devcluster.Pool{taintedPool("gpupool")}, want: map[string]int{"aci": 1}},
		{name: "without", silent: true, groups: []devcluster.Pool{taintedPool("gpupool")}, want: map[string]int{"": 1}},
		{name: "with numbers that add up by accident", silent: true, groups: []devcluster.Pool{taintedPool("gpupool"), taintedPool("morepool")}, want: map[string]int{"": 1},
			event: "pod didn't trigger scale-up: 1 Insufficient cpu, 2 max node group size reached, 1 Insufficient memory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := start(t, &devcluster.AutoscalerOptions{Interval: eventLoop, NoEvents: tc.silent},
				append(tc.groups, vms("userpool", "user", 0, 0, 2, 20), vms("systempool", "system", 1, 1, 1, 10))...)
			e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
			e.Create(suite.Deployment("full", 3, "1500m"))
			e.Lands(40*time.Second, "full", map[string]int{"userpool": 2, "systempool": 1})
			time.Sleep(2 * eventLoop) // the status shows that the VMs have come
			e.Create(suite.Deployment("plain", 1, "1500m"))
			began := time.Now()
			if tc.silent {
				if p := e.held(namespace, 1)[0]; tc.event != "" {
					e.forge(p, tc.event)
				}
			}
			if tc.want["aci"] == 0 {
				e.Keeps(soon, "plain", tc.want)
				e.Lands(time.Minute+5*eventLoop+10*time.Second, "plain", map[string]int{"aci": 1})
			} else {
				e.Lands(soon, "plain", tc.want)
			}
			t.Logf("%s: burst after %v; events %q", tc.name, time.Since(began).Round(100*time.Millisecond), e.Events("NotTriggerScaleUp"))
		})
	}
}

// forge writes an event on the pod as the autoscaler does.
func (e *env) forge(pod corev1.Pod, message string) {
	e.Helper()
	must.Do(e)(e.Client.CoreV1().Events(pod.Namespace).Create(e.ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: pod.Name + "-"}, Reason: "NotTriggerScaleUp", Message: message, LastTimestamp: metav1.Now(),
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Source:         corev1.EventSource{Component: "cluster-autoscaler"},
	}, metav1.CreateOptions{}))
}
