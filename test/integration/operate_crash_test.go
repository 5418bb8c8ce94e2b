package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// crash kills the scheduler and starts it again at this interval, until check returns "".
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
		must.NoError(e, e.scheduler.Restart())
	}
}

// burstAfter crashes the scheduler until a pod is on the virtual node. The time until then must be about as long as the
// grace.
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

// TestCrashLoop: a scheduler that is killed every four seconds holds a pod for its grace, and not for a longer or
// shorter time.
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
		autoscaler := fast()
		autoscaler.NoEvents = true                                      // with its event, the pod would burst after a loop
		e := start(t, autoscaler, vms("userpool", "user", 1, 1, 3, 20)) // the pool can grow
		e.schedule("testdata/crash-loop-decline.yaml", suite.UserTier(1), suite.VirtualTier())
		e.Create(suite.Deployment("web", 1, "500m", func(t *corev1.PodTemplateSpec) {
			t.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
			// A zone that the pool may have, but the autoscaler's template does not have.
			t.Spec.NodeSelector = nil
			t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"westeurope-1"}}}},
			}}}}
		}))
		e.Lands(10*time.Second, "web", map[string]int{"": 1})
		e.Keeps(6*time.Second, "web", map[string]int{"": 1}) // longer than declineGrace, which begins after the scheduling gate
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
