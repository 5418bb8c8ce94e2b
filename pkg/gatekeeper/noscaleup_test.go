package gatekeeper

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/must"
)

// TestNoScaleUp: the autoscaler writes that it adds no node for a pod, and then a status without a change. The pod is
// requeued, and a pod without an event is not. An event on the status that the autoscaler skips pods begins an outage.
func TestNoScaleUp(t *testing.T) {
	w := newWorld(t)
	w.setStatus(1, 1)
	w.run("events")
	w.Lead()
	w.setStatus(1, 1) // events count from the first status after the scheduler has begun to read them
	w.eventually(func() string {
		if w.view.Load().Pools[0].LastStatus.EventsSince.IsZero() {
			return "events are not read"
		}
		return ""
	})
	pods := []*v1.Pod{pod("p"), pod("q")}
	for _, p := range pods {
		w.addPod(withCondition(p, v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now()))
		w.verdict(p, gate.ReasonCanGrow.Code)
		d := w.Decide(p, Snapshot{}, gate.Wait{})
		w.Hold(klog.Background(), p, &d, nil)
		w.eventually(func() string {
			if w.held.Since(p, w.clock.Now()).NoRoom.IsZero() {
				return "the pod's wait has not begun"
			}
			return ""
		})
	}
	write := func(name string, on v1.ObjectReference, reason, message string) {
		must.Do(t)(w.client.CoreV1().Events(on.Namespace).Create(t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: on.Namespace, Name: name}, InvolvedObject: on,
			Reason: reason, Message: message, Source: v1.EventSource{Component: "cluster-autoscaler"}, LastTimestamp: metav1.NewTime(w.clock.Now())}, metav1.CreateOptions{}))
	}
	time.Sleep(100 * time.Millisecond) // 2 s of the clock: the view is newer than the pods
	write("a", v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p", UID: "p"}, "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 node(s) had untolerated taint(s)")
	w.eventually(func() string {
		if e := w.sources.NoScaleUp(pods[0]); e.Groups != 1 {
			return fmt.Sprintf("the event is %+v", e)
		}
		return ""
	})
	if w.wasActivated("p") {
		t.Error("the pod is requeued before there is a newer status")
	}
	time.Sleep(10 * time.Millisecond)
	w.setStatus(1, 1)
	w.eventually(func() string {
		if !w.wasActivated("p") {
			return "the pod is not requeued"
		}
		return ""
	})
	if d := w.Decide(pods[1], Snapshot{}, gate.Wait{}); d.Opens() {
		t.Errorf("the gate is open for the other pod: %+v", d.Burst[2])
	}
	write("b", v1.ObjectReference{Kind: "ConfigMap", Namespace: "kube-system", Name: "cluster-autoscaler-status"}, "GracefulDegradationStarted", "unable")
	w.eventually(func() string {
		if o := w.view.Load().Pools[0].Outages; len(o) != 1 || !o[0].To.IsZero() {
			return fmt.Sprintf("the outages are %v", o)
		}
		return ""
	})
}
