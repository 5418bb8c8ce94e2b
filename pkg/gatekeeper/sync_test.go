package gatekeeper

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// crowd makes the world hold n pods, which have the given number of kinds. In its view, two pools can grow. Together
// they have 200 node templates. The pods fit only the last one.
func (w *world) crowd(tb testing.TB, n, kinds int) {
	tb.Helper()
	view := &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}
	for i := range 2 {
		for g := range 4 {
			group := nodegroups.Group{GroupStatus: nodegroups.GroupStatus{Name: fmt.Sprint("g", g), State: nodegroups.CanGrow}}
			for k := range 25 {
				shape := nodegroups.NodeTemplate{Labels: map[string]string{"kind": fmt.Sprint(g, k)}, Allocatable: v1.ResourceList{"cpu": resource.MustParse("1")}}
				for l := range 20 {
					shape.Labels[fmt.Sprint("label", l)] = "x"
				}
				group.NodeTemplates = append(group.NodeTemplates, shape)
			}
			view.Pools[i].Groups = append(view.Pools[i].Groups, group)
		}
	}
	last := view.Pools[1].Groups[3].NodeTemplates[24]
	last.Allocatable["cpu"] = resource.MustParse("100")
	w.Assume(view)
	closed := gate.Decision{Regular: []gate.Verdict{{Open: true}, {Open: true}}, Burst: make([]gate.Verdict, 3)}
	indexer := w.config.Informers.Core().V1().Pods().Informer().GetIndexer()
	for i := range n {
		p := pod(fmt.Sprint("p", i))
		p.UID = types.UID(p.Name)
		p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse(fmt.Sprint(2 + i%kinds))}}}}
		must.NoError(tb, indexer.Add(p))
		w.held.Add(p, w.autoscalerKey(p), &closed, nil, w.clock.Now())
	}
}

// TestHeldIsReportedSoon: pods that are held right after a report are in the next report, which is due after
// reportInterval even if no event occurs.
func TestHeldIsReportedSoon(t *testing.T) {
	w := newWorld(t)
	w.Lead()
	l := &w.loop
	l.takenOver, l.timer = true, w.clock.NewTimer(0)
	w.crowd(t, 2, 1)
	w.sync(w.Context(), true)
	told := w.clock.Now()
	if !l.reported.Equal(told) {
		t.Fatalf("they are told at %v, want at once", l.reported)
	}
	w.clock.Step(reportInterval / 10)
	w.crowd(t, 3, 1)
	w.sync(w.Context(), true)
	if wait := l.due.Sub(w.clock.Now()); !l.reported.Equal(told) || wait <= 0 || wait > reportInterval {
		t.Errorf("the others are told at %v, and the next look is in %v", l.reported, wait)
	}
}
