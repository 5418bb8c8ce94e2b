package held

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/usage"
	"poolpriority.dev/scheduler/pkg/pool"
)

func TestWithinSpaces(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	of := func(name string, priority int32, cpu string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority,
			Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	}
	space := func(tried time.Duration, used usage.ByPriority, change func(*v1.Node)) *Space {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("10")}}}
		if change != nil {
			change(n)
		}
		return &Space{Node: n, Burst: pool.None, Used: used, TriedBefore: began.Add(tried)}
	}
	pods := []*v1.Pod{of("late", 0, "1"), of("high", 5, "2"), of("big", 5, "5"), of("early", 0, "1")}
	for _, name := range []string{"gpu", "gpu-2"} { // only one node has such a resource
		p := of(name, 8, "2")
		p.Spec.Containers[0].Resources.Requests["gpu"] = resource.MustParse("1")
		pods = append(pods, p)
	}
	const later = time.Minute
	load := func(cpu int64) usage.Load { return usage.Load{Requests: aci.Use{Pods: 1, MilliCPU: cpu}} }
	var none usage.ByPriority
	for _, tc := range []struct {
		name  string
		space *Space
		byUs  bool
		want  []string
	}{
		{"all that fit", space(later, none, nil), true, []string{"ns/early", "ns/high", "ns/late"}},
		{"the high priority first, then the longest wait", space(later, none.Plus(9, 1, load(1000)), nil), true, []string{"ns/early", "ns/high"}},
		{"pods that may be preempted do not count", space(later, none.Plus(3, 1, load(3000)), nil), true, []string{"ns/high"}},
		{"pods of two kinds were tried since", space(0, none, nil), true, []string{"ns/high"}},
		{"the queue requeues them", space(later, none, nil), false, nil},
		{"a taint", space(later, none, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "x", Effect: v1.TaintEffectNoExecute}} }), true, nil},
		{"a taint that only advises", space(later, none.Plus(9, 1, load(2000)), func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "x", Effect: v1.TaintEffectPreferNoSchedule}} }), true, []string{"ns/high"}},
		{"cordoned", space(later, none, func(n *v1.Node) { n.Spec.Unschedulable = true }), true, nil},
		{"room for one, which may be in use", space(later, none.Plus(9, 1, load(2000)), func(n *v1.Node) {
			n.Status.Allocatable["gpu"] = resource.MustParse("1")
		}), true, []string{"ns/gpu-2", "ns/high"}},
		{"one more pod", space(later, none, func(n *v1.Node) { n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("1") }), true, []string{"ns/high"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New()
			for i, p := range pods {
				h.Add(p, "", &gate.Decision{}, nil, began.Add(-time.Duration(i)*time.Second))
				if h.Local(p.UID); h.ByLoop(p.UID, tc.byUs) != tc.byUs {
					t.Fatal("not held")
				}
			}
			h.Add(of("big", 5, "5"), "", &gate.Decision{}, nil, began)
			h.Add(of("early", 0, "1"), "", &gate.Decision{}, nil, began.Add(time.Millisecond))
			if tc.byUs {
				h.Local("early")
				h.ByLoop("early", true)
			}
			got := h.sends(began, func() { h.WithinSpaces(map[string]*Space{"n": tc.space}, began) })
			if diff := cmp.Diff(tc.want, got); diff != "" && fmt.Sprint(tc.want) != fmt.Sprint(got) {
				t.Errorf("(-want,+got)\n%s", diff)
			}
			if again := h.WithinSpaces(map[string]*Space{"n": space(later, none.Plus(9, 1, load(4000)), nil)}, began); again > 0 {
				t.Errorf("chosen twice, or for a full node: %d", again)
			}
		})
	}
}

// TestTriedElsewhere: the gate is open for a held pod, and no burst node has room, so that a failed cycle does not
// hold the pod again. The pod was chosen for node x, was tried, and did not fit there. When room comes on node y two
// seconds later, it must be chosen for y.
func TestTriedElsewhere(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: types.UID("p")}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}}}}
	space := func(name string, freed time.Time) map[string]*Space {
		return map[string]*Space{name: {Node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("10")}}},
			Burst: pool.None, TriedBefore: freed.Add(100 * time.Millisecond)}}
	}
	fails := func(h *Pods, now time.Time) {
		h.fails(p, true, now)
		h.Local(p.UID)
		h.ByLoop(p.UID, true) // by the handler of failed cycles
	}
	h := New()
	h.Trust(began)
	h.Failed(p, true, began)
	h.Add(p, "", &gate.Decision{Burst: []gate.Verdict{{Open: false, Reason: gate.ReasonCanGrow}}}, nil, began)
	h.Local(p.UID)
	h.ByLoop(p.UID, true)
	h.Reconsider(false, began, noNodes, func(*Candidate) gate.Decision { return gate.Decision{Burst: []gate.Verdict{{Open: true}}} })
	fails(h, began.Add(time.Second)) // the gate opened in vain

	freed := began.Add(time.Minute)
	if got := h.WithinSpaces(space("x", freed), freed); got != 1 {
		t.Fatalf("room on x: %v", got)
	}
	h.NextBatch(freed)
	fails(h, freed.Add(50*time.Millisecond))                                                   // another pod was faster
	for _, after := range []time.Duration{2 * time.Second, 3 * time.Second, 7 * time.Second} { // when the gatekeeper looks at y
		if got := h.WithinSpaces(space("y", freed.Add(2*time.Second)), freed.Add(after)); got > 0 {
			return
		}
	}
	t.Error("room on y: the pod is never chosen, and waits until retryHeld")
}
