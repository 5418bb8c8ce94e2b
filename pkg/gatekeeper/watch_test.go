package gatekeeper

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/must"
)

// TestNamespaceIsLabelled: a pod is held if its namespace is not selected or not known yet. It is requeued when the
// namespace gets the label.
func TestNamespaceIsLabelled(t *testing.T) {
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) {
		args.Pools[2].Burst.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"burst": "yes"}}
	})
	w.setStatus(3, 3)
	w.run("namespaces")
	w.Lead()
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	w.addPod(p)
	verdict := func() gate.Verdict { return w.Decide(p, Snapshot{}, gate.Wait{}).Burst[2] }
	w.eventually(func() string {
		if v := verdict(); v.Open || v.Reason.Code != "NamespaceNotSelected" {
			return fmt.Sprintf("while the namespace is not known: %+v", v)
		}
		return ""
	})
	hold := func() {
		d := w.Decide(p, Snapshot{}, gate.Wait{})
		w.Hold(klog.Background(), p, &d, nil)
	}
	hold()
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"burst": "no"}}}
	must.Do(t)(w.client.CoreV1().Namespaces().Create(w.Context(), namespace, metav1.CreateOptions{}))
	time.Sleep(100 * time.Millisecond)
	if v := verdict(); v.Open || w.wasActivated("p") {
		t.Errorf("with another label: %+v", v)
	}
	before := w.SchedulerSignature(p)
	namespace.Labels["burst"] = "yes"
	must.Do(t)(w.client.CoreV1().Namespaces().Update(w.Context(), namespace, metav1.UpdateOptions{}))
	w.eventually(func() string {
		if !w.wasActivated("p") {
			return "the pod was not requeued when its namespace was labelled"
		}
		return ""
	})
	if v := verdict(); !v.Open {
		t.Errorf("with the label: %+v", v)
	}
	if fmt.Sprint(before) == fmt.Sprint(w.SchedulerSignature(p)) {
		t.Error("the pod's signature is that of a pod that may not burst")
	}
}
