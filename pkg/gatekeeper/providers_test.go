package gatekeeper

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/providers"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

func burstNode(name string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"type": "virtual-kubelet"}}}
}

// onBurst returns a pod that is bound to the burst node at the current time.
func (w *world) onBurst(name string) *v1.Pod {
	p := withCondition(pod(name), v1.ConditionTrue, "", w.clock.Now())
	p.Spec.NodeName = "virtual"
	p.Status.Phase = v1.PodPending
	return p
}

func (w *world) refuse(p *v1.Pod, message string) {
	w.Helper()
	p = p.DeepCopy()
	p.Status.Reason, p.Status.Message = refusal.ReasonProviderFailed, message
	w.update(p)
}

func (w *world) update(p *v1.Pod) {
	w.Helper()
	must.Do(w.TB)(w.client.CoreV1().Pods(p.Namespace).Update(w.Context(), p, metav1.UpdateOptions{}))
}

// verdict waits until the gate's reason for the pod is this code. The reason of an open gate is Open.
func (w *world) verdict(p *v1.Pod, reason string) {
	w.Helper()
	w.eventually(func() string {
		if v := w.Decide(p, Snapshot{}, gate.Wait{}).Burst[2]; v.Reason.Code != reason {
			return fmt.Sprintf("the gate says %+v, want %s", v, reason)
		}
		return ""
	})
}

// published waits until the published state of the burst pool is this state.
func (w *world) published(state breaker.State) {
	w.Helper()
	w.eventually(func() string {
		cm, err := w.client.CoreV1().ConfigMaps("pool-priority-system").Get(w.Context(), "pool-priority-status", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		s, err := published.Decode(cm)
		if err != nil {
			return err.Error()
		}
		if s.View == nil || cmp.Or(s.View.Capacity.Pools[2].Provider.State, breaker.Open) != state || (s.Memory.BurstPools["aci"].State == breaker.Refusing) != (state == breaker.Refusing) {
			return "published: " + cm.Data["view"] + cm.Data["memory"]
		}
		return ""
	})
}

// heard waits until each of the texts has occurred in an event.
func (w *world) heard(words ...string) {
	w.Helper()
	for deadline := time.After(10 * time.Second); len(words) > 0; {
		select {
		case event := <-w.recorder.Events:
			words = slices.DeleteFunc(words, func(word string) bool { return strings.Contains(event, word) })
		case <-deadline:
			w.Fatalf("nobody tells of %q", words)
		}
	}
}

const quotaMessage = `api call to https://management.azure.com/x: got HTTP response status code 409 error code "ContainerGroupQuotaReached": no cores`

// TestBurstPoolRefuses: a burst pool begins to refuse pods, is tested with one pod, and accepts pods again.
func TestBurstPoolRefuses(t *testing.T) {
	RegisterMetrics()
	providers.Refusals.Reset()
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) {
		args.Capacity.StaleAfter = &metav1.Duration{Duration: time.Hour}
	}, burstNode("virtual"))
	w.run()
	w.setStatus(3, 3)
	w.Lead()
	waiting := withCondition(pod("waiting"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	w.addPod(waiting)
	w.verdict(waiting, "Open")
	for _, name := range []string{"a", "b"} {
		p := w.onBurst(name)
		w.addPod(p)
		w.refuse(p, quotaMessage)
	}
	w.verdict(waiting, "Refused")
	d := w.Decide(waiting, Snapshot{}, gate.Wait{})
	if d.Burst[2].Until.IsZero() {
		t.Errorf("it is not known when that changes: %+v", d.Burst[2])
	}
	w.Gatekeeper.Failed(waiting, true)
	w.Hold(klog.Background(), waiting, &d, nil, false)
	w.published(breaker.Refusing)
	w.heard("BurstPoolRefuses burst pool aci: its provider has refused pods since")
	if got, err := testutil.GetCounterMetricValue(providers.Refusals.WithLabelValues("aci", "ContainerGroupQuotaReached")); err != nil || got != 2 {
		t.Errorf("%v refusals are counted (%v), want 2", got, err)
	}
	if got := w.gauges()["burst_refusing{aci}"]; got != 1 {
		t.Errorf("burst_refusing is %v", got)
	}

	// After the backoff of a minute, by the fake clock, the held pod is requeued to test the pool.
	w.activates("waiting", "the held pod is not requeued for a probe")
	probe := w.onBurst("probe")
	probe.Namespace = "probes"
	w.addPod(probe)
	w.verdict(waiting, "HalfOpen")
	probe.Status.Phase = v1.PodRunning
	w.update(probe)
	w.verdict(waiting, "Open")
	w.published(breaker.Open)
	w.heard("BurstPoolAccepts")
}

// TestBurstNodeComesLate: when a node becomes a burst node, the pods that are already on it are processed.
func TestBurstNodeComesLate(t *testing.T) {
	w := newWorld(t)
	w.run()
	w.setStatus(3, 3)
	w.Lead()
	w.verdict(pod("other"), "Open")
	for _, name := range []string{"a", "b"} {
		p := w.onBurst(name)
		p.Status.Reason, p.Status.Message = refusal.ReasonProviderFailed, quotaMessage
		w.addPod(p)
	}
	must.Do(t)(w.client.CoreV1().Nodes().Create(t.Context(), burstNode("virtual"), metav1.CreateOptions{}))
	w.verdict(pod("other"), "Refused")
}
