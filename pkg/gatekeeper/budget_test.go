package gatekeeper

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestWakeForBudgets: a budget wakes as many of the pods that only it holds as it has room for, the best first, and none twice.
func TestWakeForBudgets(t *testing.T) {
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) { args.Pools[2].Burst.Limits = &configv1.BurstLimits{Pods: 3} })
	w.Assume(&nodegroups.View{Pools: make([]nodegroups.Pool, 3)})
	core := w.config.Informers.Core().V1()
	pods, nodes := core.Pods().Informer().GetIndexer(), core.Nodes().Informer().GetIndexer()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(nodes.Add(node))
	burst := func(i int) *v1.Pod {
		p := pod(fmt.Sprint("burst", i))
		p.UID, p.Spec.NodeName = types.UID(p.Name), node.Name
		return p
	}
	for i := range 3 {
		w.usage.See(burst(i))
	}
	hold := func(name string, priority int32, reason nodegroups.Reason) {
		p := pod(name)
		p.UID, p.Spec.Priority = types.UID(name), ptr.To(priority)
		must(pods.Add(p))
		w.held.add(p, "", &gate.Decision{Regular: make([]gate.PoolVerdict, 2), Burst: []gate.Verdict{{}, {}, {Reason: reason}}}, nil, w.clock.Now())
		w.clock.Step(time.Second)
	}
	var woken []string
	wakes := func(when string, want ...string) {
		t.Helper()
		woken = nil
		w.wakeForBudgets(w.Context())
		slices.Sort(woken)
		if !slices.Equal(woken, want) {
			t.Errorf("%s: %v are woken, want %v", when, woken, want)
		}
	}
	w.config.Activate = func(_ klog.Logger, pods map[string]*v1.Pod) {
		woken = slices.AppendSeq(woken, maps.Keys(pods))
	}
	for i := range 4 {
		hold(fmt.Sprint("waits", i), 0, gate.ReasonBudget)
	}
	hold("important", 10, gate.ReasonBudget)
	hold("held", 20, gate.ReasonCanGrow)
	wakes("the budget is spent")
	w.usage.Gone(burst(0).UID)
	wakes("a burst pod was deleted", "default/important")
	wakes("and nothing else happens")
	ended := burst(1)
	ended.Status.Phase = v1.PodFailed
	w.usage.See(ended)
	wakes("a burst pod failed", "default/waits0")
	bound := pod("important")
	bound.UID, bound.Spec.NodeName = "important", node.Name
	w.usage.See(bound)
	w.forget("important")
	wakes("one of the woken is bound")
	hold("waits0", 0, gate.ReasonBudget)
	wakes("the other is held again", "default/waits0")
	w.clock.Step(wokenFor)
	wakes("it does not come back", "default/waits0")
	must(nodes.Delete(node))
	wakes("the burst node goes", "default/waits1", "default/waits2")
}
