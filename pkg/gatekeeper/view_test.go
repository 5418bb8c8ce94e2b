package gatekeeper

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAvailable: nodes are counted that can be used, and those in no pool.
func TestAvailable(t *testing.T) {
	node := func(name, key, value string, ready v1.ConditionStatus, cordoned bool) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{key: value}}, Spec: v1.NodeSpec{Unschedulable: cordoned}}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
		return n
	}
	w := newWorld(t,
		node("a", "agentpool", "userpool", v1.ConditionTrue, false), node("b", "agentpool", "userpool", v1.ConditionFalse, false),
		node("c", "agentpool", "systempool", v1.ConditionTrue, true), node("d", "agentpool", "other", v1.ConditionTrue, false),
		node("e", "type", "virtual-kubelet", v1.ConditionTrue, false))
	w.config.Informers.Start(w.Context().Done())
	w.config.Informers.WaitForCacheSync(w.Context().Done())
	v := w.Gatekeeper.published(w.view.Load())
	if want := []int{1, 0, 1}; !slices.Equal(v.Available, want) || v.Unlisted != 1 {
		t.Errorf("available %v, and %d in no pool, want %v and 1", v.Available, v.Unlisted, want)
	}
}
