package gatekeeper

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFullness: nodes are counted that can be used, and those in no pool, and what pods take of each pool.
func TestFullness(t *testing.T) {
	node := func(name, key, value string, ready v1.ConditionStatus, cordoned bool) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{key: value}}, Spec: v1.NodeSpec{Unschedulable: cordoned}}
		n.Status.Allocatable = v1.ResourceList{"cpu": resource.MustParse("1900m"), "memory": resource.MustParse("6Gi")}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
		return n
	}
	on := func(name, node string) *v1.Pod {
		p := pod(name)
		p.Spec.NodeName = node
		p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("1Gi")}}}}
		return p
	}
	ended := on("ended", "a")
	ended.Status.Phase = v1.PodSucceeded
	w := newWorld(t, on("1", "a"), on("2", "a"), on("3", "b"), on("4", "c"), on("5", "e"), on("6", "d"), on("7", "nowhere"), ended,
		node("a", "agentpool", "userpool", v1.ConditionTrue, false), node("b", "agentpool", "userpool", v1.ConditionFalse, false),
		node("c", "agentpool", "systempool", v1.ConditionTrue, true), node("d", "agentpool", "other", v1.ConditionTrue, false),
		node("e", "type", "virtual-kubelet", v1.ConditionTrue, false))
	w.config.Informers.Start(w.Context().Done())
	w.config.Informers.WaitForCacheSync(w.Context().Done())
	w.eventually(func() string {
		if !w.hasSynced() {
			return "the pods are not known"
		}
		return ""
	})
	v := w.Gatekeeper.published(w.view.Load())
	if want := []int{1, 0, 1}; !slices.Equal(v.Available, want) || v.Unlisted != 1 {
		t.Errorf("available %v, and %d in no pool, want %v and 1", v.Available, v.Unlisted, want)
	}
	for i, want := range []string{"3 of 1500m 3Gi of 3800m 12Gi", "1 of 500m 1Gi of 1900m 6Gi", "1 of 500m 1Gi of 0 0"} {
		u := &v.Usage[i]
		got := fmt.Sprintf("%d of %s %s of %s %s", u.Pods, u.Requested.Cpu(), u.Requested.Memory(), u.Allocatable.Cpu(), u.Allocatable.Memory())
		if got != want {
			t.Errorf("usage of pool %d is %s, want %s", i, got, want)
		}
	}
}

// TestHeldIsToldSoon: pods that are held right after a report are told when the next report may be, and not only when something else happens.
func TestHeldIsToldSoon(t *testing.T) {
	w := newWorld(t)
	l := loop{Gatekeeper: w.Gatekeeper, timer: w.clock.NewTimer(0)}
	w.Lead()
	l.takenOver = true
	told := func() int { return l.publisher.newest.Load().View.Held.Total }
	w.crowd(t, 2, 1)
	l.look(w.Context(), true)
	if got := told(); got != 2 {
		t.Fatalf("%d pods are told of, want 2", got)
	}
	w.clock.Step(reportInterval / 10)
	w.crowd(t, 3, 1)
	l.look(w.Context(), true)
	if wait := l.due.Sub(w.clock.Now()); told() != 2 || wait <= 0 || wait > reportInterval {
		t.Errorf("%d pods are told of, and the next look is in %v", told(), wait)
	}
}
