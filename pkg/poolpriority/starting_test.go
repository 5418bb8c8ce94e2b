package poolpriority

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// setProvider replaces what the provider of the first burst pool makes of pods, with all regular pools full.
func (h *harness) setProvider(provider breaker.Status) {
	view := &nodegroups.View{Pools: make([]nodegroups.Pool, h.plugin.pools.Len())}
	for i := range h.plugin.pools.Regular() {
		view.Pools[i] = inState(nodegroups.Full)
	}
	view.Pools[h.plugin.pools.Regular()].Provider = provider
	h.plugin.gatekeeper.Assume(view)
}

// TestNotStarted: pods that run or were refused are not waited for; one that was placed a moment ago is.
func TestNotStarted(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(virtualNode("virtual"))
	h.setProvider(breaker.Status{State: breaker.HalfOpen})
	for name, status := range map[string]v1.PodStatus{"runs": {Phase: v1.PodRunning}, "refused": {Reason: refusal.ReasonProviderFailed}} {
		p := pod(name).Obj()
		p.Status = status
		h.place(p, "virtual")
	}
	if node, err := h.schedule(withUnschedulable(pod("probe").Obj(), time.Hour)); node != "virtual" {
		t.Fatalf("the probe is on %q (%v)", node, err)
	}
	if _, err := h.schedule(pod("next").Obj()); err == nil || !strings.Contains(err.Error(), gate.ReasonHalfOpen.Sentence) {
		t.Errorf("the next was told %v, want %q", err, gate.ReasonHalfOpen.Sentence)
	}
}

// TestJobIsPaced: pods of a Job go to a burst pool one at a time before any has started.
func TestJobIsPaced(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(virtualNode("virtual"))
	h.setProvider(breaker.Status{State: breaker.Open})
	of := func(name, job string) *v1.Pod {
		p := pod(name).OwnerReference(job, batchv1.SchemeGroupVersion.WithKind("Job")).CreationTimestamp(metav1.Now()).Obj()
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.OwnerReferences[0].UID = types.UID("uid-of-" + job)
		return p
	}
	for _, p := range []*v1.Pod{of("a-1", "a"), of("b-1", "b")} {
		if node, err := h.schedule(p); node != "virtual" {
			t.Fatalf("%s is on %q (%v)", p.Name, node, err)
		}
	}
	for range 2 {
		if node, err := h.schedule(of("a-2", "a")); err == nil || !strings.Contains(err.Error(), gate.ReasonRateLimited.Sentence) {
			t.Errorf("the second of a Job is on %q, and was told %v; want %q", node, err, gate.ReasonRateLimited.Sentence)
		}
	}
	if fmt.Sprint(h.plugin.SignPod(h.ctx, of("a-2", "a"))) == fmt.Sprint(h.plugin.SignPod(h.ctx, of("b-2", "b"))) {
		t.Error("the pods of two Jobs are treated alike")
	}
	h.remove("a-1")
	if node, err := h.schedule(of("a-3", "a")); node != "virtual" {
		t.Errorf("once one is gone, the next is on %q (%v)", node, err)
	}
}

// withUnschedulable is the pod after it has been unschedulable for that long.
func withUnschedulable(p *v1.Pod, age time.Duration) *v1.Pod {
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(time.Now().Add(-age))}}
	return p
}
