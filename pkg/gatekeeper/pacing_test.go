package gatekeeper

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// ofJob makes the Job the pod's controller, and sets restartPolicy Never.
func ofJob(p *v1.Pod, job string) *v1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: job, UID: types.UID("uid-of-" + job), Controller: ptr.To(true)}}
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	return p
}

// newSlowWorld returns a world whose burst pool has long breaker rules. No breaker state then changes because of the
// fast clock.
func newSlowWorld(t testing.TB, objects ...runtime.Object) *world {
	t.Helper()
	return newWorldOf(t, fake.NewClientset(objects...), func(*configv1.PoolPriorityArgs) {}, func(time.Duration) breaker.Rules {
		const long = 1000 * time.Hour
		rules := breaker.NewRules(0)
		rules.Alone, rules.FirstBackoff, rules.MaxBackoff, rules.Answer, rules.Trust, rules.Forget = long, long, long, long, long, long
		return rules
	})
}

// pacingOf returns the pacing of the Job, and the pacing that contains it.
func (w *world) pacingOf(job string) (breaker.OwnerPacing, *breaker.Pacing) {
	owner := refusal.KeyOf("default", types.UID("uid-of-"+job))
	p := w.providers.Pacing(2, owner, nil, w.clock.Now())
	return p.Owners[owner], p
}

// TestRecallOfTheRefused: refusals that happened while no scheduler led are found before the first decision.
func TestRecallOfTheRefused(t *testing.T) {
	failed := func(name, node, message string) *v1.Pod {
		p := ofJob(pod(name), "sums")
		p.Spec.NodeName, p.CreationTimestamp = node, metav1.NewTime(time.Date(2026, 11, 21, 9, 59, 0, 0, time.UTC))
		p.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: refusal.ReasonProviderFailed, Message: message}
		return p
	}
	running := failed("runs", "virtual", "")
	running.Status = v1.PodStatus{Phase: v1.PodRunning}
	w := newSlowWorld(t, burstNode("virtual"), failed("a", "virtual", quotaMessage), failed("b", "virtual", quotaMessage), failed("c", "vm", quotaMessage), running)
	w.run()
	w.setStatus(3, 3)
	w.verdict(pod("next"), "Refused")
	if job, _ := w.pacingOf("sums"); len(job.Refused) != 2 {
		t.Errorf("a and b of the Job were refused: %+v", job)
	}
}
