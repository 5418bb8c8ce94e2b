package gatekeeper

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/status"
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

// TestFullness: what pods request of what the nodes of each pool offer; pods on nodes in no pool, and those that have ended, do not count.
func TestFullness(t *testing.T) {
	list := func(cpu, memory string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	}
	node := func(name, key, value string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{key: value}}, Status: v1.NodeStatus{Allocatable: list("1900m", "6Gi")}}
	}
	on := func(name, node string, phase v1.PodPhase) *v1.Pod {
		p := pod(name)
		p.Spec.NodeName, p.Status.Phase = node, phase
		p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: list("500m", "1Gi")}}}
		return p
	}
	w := newWorld(t, node("a", "agentpool", "userpool"), node("b", "agentpool", "userpool"), node("c", "agentpool", "other"),
		on("1", "a", v1.PodRunning), on("2", "b", v1.PodRunning), on("3", "b", v1.PodSucceeded), on("4", "c", v1.PodRunning), on("5", "", v1.PodPending))
	w.config.Informers.Start(w.Context().Done())
	w.config.Informers.WaitForCacheSync(w.Context().Done())
	w.eventually(func() string {
		if !w.usage.hasSynced() {
			return "the pods are not known"
		}
		return ""
	})
	got := w.Gatekeeper.published(w.view.Load()).Usage
	want := []status.Usage{{Pods: 2, Requested: list("1", "2Gi"), Allocatable: list("3800m", "12Gi")}, {Requested: list("0", "0"), Allocatable: list("0", "0")}, {Requested: list("0", "0"), Allocatable: list("0", "0")}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
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
