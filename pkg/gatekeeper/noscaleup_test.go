package gatekeeper

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/must"
)

// TestDegradation: an event on the status that the autoscaler skips pods begins an outage.
func TestDegradation(t *testing.T) {
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
	status := v1.ObjectReference{Kind: "ConfigMap", Namespace: "kube-system", Name: "cluster-autoscaler-status"}
	must.Do(t)(w.client.CoreV1().Events(status.Namespace).Create(t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: status.Namespace, Name: "b"}, InvolvedObject: status,
		Reason: "GracefulDegradationStarted", Message: "unable", Source: v1.EventSource{Component: "cluster-autoscaler"}, LastTimestamp: metav1.NewTime(w.clock.Now())}, metav1.CreateOptions{}))
	w.eventually(func() string {
		if o := w.view.Load().Pools[0].Outages; len(o) != 1 || !o[0].To.IsZero() {
			return fmt.Sprintf("the outages are %v", o)
		}
		return ""
	})
}
