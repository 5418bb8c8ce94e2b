package gatekeeper

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/must"
)

// setOverride writes the override's ConfigMap. If data is nil, it deletes the ConfigMap.
func (w *world) setOverride(data map[string]string) {
	w.Helper()
	configMaps := w.client.CoreV1().ConfigMaps("pool-priority-system")
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: gate.OverrideConfigMap, Namespace: "pool-priority-system"}, Data: data}
	var err error
	if data == nil {
		err = configMaps.Delete(w.Context(), cm.Name, metav1.DeleteOptions{})
	} else if _, err = configMaps.Update(w.Context(), cm, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = configMaps.Create(w.Context(), cm, metav1.CreateOptions{})
	}
	must.NoError(w.TB, err)
}

// TestOverride: an override takes effect at once, and held pods are requeued. It ends at its end time, without an event
// of the cluster.
func TestOverride(t *testing.T) {
	w := newWorld(t)
	w.run()
	w.setStatus(1, 1)
	p, asks := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now()), pod("asks")
	asks.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
	w.addPod(p)
	w.Lead()
	w.verdict(p, "PoolCanGrow")
	w.verdict(asks, "SelectedByPod")
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	w.Gatekeeper.Failed(p, true)
	w.Hold(klog.Background(), p, &d, nil, false)

	w.setOverride(map[string]string{"gate": "Open"})
	w.activates("p", "the pod is not requeued")
	w.verdict(p, "OverriddenOpen")
	w.heard("GateOverridden Open: burst pools are open")

	until := w.clock.Now().Add(30 * time.Second)
	w.setOverride(map[string]string{"gate": "Closed", "until": until.UTC().Format(time.RFC3339)})
	w.verdict(asks, "OverriddenClosed")
	w.heard("GateOverridden Closed until 2026-11-21T")
	w.verdict(asks, "SelectedByPod")
	if now := w.clock.Now(); now.Before(until.Truncate(time.Second)) {
		t.Errorf("it ended at %v, before %v", now, until)
	}
	w.heard("GateOverrideEnded the override ended at 2026-11-21T")
}
