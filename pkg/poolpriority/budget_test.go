package poolpriority

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// withLimits is a scheduler of two virtual nodes and no VM, whose burst pool has the limits.
func withLimits(t *testing.T, limits configv1.BurstLimits) *harness {
	t.Helper()
	cfg := aks(t)
	setBurst(cfg, func(b *configv1.Burst) { b.Limits = &limits })
	h := newHarness(t, cfg)
	h.addNodes(virtualNode("virtual-1"), virtualNode("virtual-2"))
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	return h
}

// TestBurstUse: in a random history, the sums of pools and namespaces are what a new count finds, whatever came, went
// and changed. A DaemonSet's pod of another scheduler counts for its namespace only.
func TestBurstUse(t *testing.T) {
	cfg := aks(t)
	setBurst(cfg, func(b *configv1.Burst) { b.PerNamespace = &configv1.BurstLimits{Pods: 1000} })
	h := newHarness(t, cfg)
	r := rand.New(rand.NewPCG(1, 2))
	nodes := map[string]*v1.Node{}
	for i := range 3 {
		name := fmt.Sprint("virtual-", i)
		nodes[name] = virtualNode(name).Obj()
		h.sched.Cache.AddNode(h.logger, nodes[name])
	}
	namespaces, daemons := []string{"a", "b", "c"}, 0
	var went bool
	change := func(i int) {
		switch k := r.IntN(10); {
		case k < 4 || len(h.bound) < 5:
			p := pod(fmt.Sprint("p", i)).Namespace(namespaces[r.IntN(3)]).Req(map[v1.ResourceName]string{"cpu": fmt.Sprint(r.IntN(4) + 1)}).Obj()
			if r.IntN(4) == 0 {
				p.OwnerReferences = owner("DaemonSet", "d")
				p.Spec.SchedulerName = []string{ourProfile, "other"}[r.IntN(2)]
			}
			h.place(p, some(r, nodes))
		case k < 6:
			h.remove(some(r, h.bound))
		case k < 8:
			name := some(r, h.bound)
			changed := h.bound[name].DeepCopy()
			if k == 6 {
				changed.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse(fmt.Sprint(r.IntN(40) + 1))
			} else {
				changed.Status.Phase = []v1.PodPhase{v1.PodRunning, v1.PodSucceeded, v1.PodFailed}[r.IntN(3)]
			}
			must.NoError(t, h.sched.Cache.UpdatePod(h.logger, h.bound[name], changed))
			h.bound[name] = changed
		case k == 8 && i%10 == 0: // it leaves the pool, or comes back
			name := some(r, nodes)
			changed := nodes[name].DeepCopy()
			if changed.Labels["type"] = "none"; nodes[name].Labels["type"] == "none" {
				changed.Labels["type"] = "virtual-kubelet"
			}
			h.sched.Cache.UpdateNode(h.logger, nodes[name], changed)
			nodes[name] = changed
		case k == 9 && i%20 == 0 && !went: // the other nodes get new positions
			went = true
			must.NoError(t, h.sched.Cache.RemoveNode(h.logger, nodes["virtual-1"]))
			delete(nodes, "virtual-1")
		}
	}
	x, pools := h.plugin.index, h.plugin.pools
	for i := range 3000 {
		if change(i); r.IntN(3) > 0 {
			continue
		}
		must.NoError(t, h.sched.Cache.UpdateSnapshot(h.logger, h.sched.Profiles[ourProfile].SnapshotSharedLister().(*cache.Snapshot)))
		snapshot := mustNodes(t, h)
		x.refresh(snapshot, false)
		var want aci.Use
		of := map[string]aci.Use{}
		for _, node := range snapshot {
			if !pools.IsBurst(pools.Of(node.Node())) {
				continue
			}
			for _, info := range node.GetPods() {
				p, use := info.GetPod(), aci.UseOf(info.GetPod(), true)
				if of[p.Namespace] = of[p.Namespace].Plus(use); p.Spec.SchedulerName == ourProfile || len(p.OwnerReferences) == 0 {
					want = want.Plus(use)
				} else {
					daemons++
				}
			}
		}
		if got := x.burstUse()[2]; got != want {
			t.Fatalf("after %d changes: %+v, want %+v", i, got, want)
		}
		for _, namespace := range namespaces {
			if got := x.share(2, namespace); got != of[namespace] {
				t.Fatalf("after %d changes, namespace %s: %+v, want %+v", i, namespace, got, of[namespace])
			}
		}
	}
	if daemons == 0 || !went {
		t.Errorf("%d pods of DaemonSets were seen, and a node went: %t", daemons, went)
	}
}

// TestNamespaceBudgetInTheCycle: three pods may burst, and two of a namespace. A DaemonSet's pod of another scheduler
// counts for its namespace only.
func TestNamespaceBudgetInTheCycle(t *testing.T) {
	cfg := aks(t)
	setBurst(cfg, func(b *configv1.Burst) {
		b.Limits, b.PerNamespace = &configv1.BurstLimits{Pods: 3}, &configv1.BurstLimits{Pods: 2}
	})
	h := newHarness(t, cfg)
	h.addNodes(virtualNode("virtual"))
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	agent := pod("agent").Namespace("b").SchedulerName("other").Obj()
	agent.OwnerReferences = owner("DaemonSet", "agent")
	h.place(agent, "virtual")
	for i, tc := range []struct {
		namespace string
		bursts    bool
	}{{"a", true}, {"b", true}, {"b", false}, {"a", true}, {"a", false}, {"c", false}} {
		node, err := h.schedule(pod(fmt.Sprint("p", i)).Namespace(tc.namespace).Obj())
		if (node == "virtual") != tc.bursts || !tc.bursts && !strings.Contains(fmt.Sprint(err), gate.ReasonBudgetSpent.Sentence) {
			t.Errorf("pod %d, in namespace %s, is on %q: %v", i, tc.namespace, node, err)
		}
	}
}

// TestNamespacesAreSigned: pods of two namespaces have different signatures if each namespace has a budget.
func TestNamespacesAreSigned(t *testing.T) {
	cfg := aks(t)
	setBurst(cfg, func(b *configv1.Burst) { b.PerNamespace = &configv1.BurstLimits{Pods: 6} })
	h := newHarness(t, cfg)
	sign := func(namespace string) string {
		return fmt.Sprint(h.plugin.SignPod(h.ctx, pod("p").Namespace(namespace).Obj()))
	}
	if sign("a") == sign("b") {
		t.Error("the scheduler cannot tell pods of two namespaces apart")
	}
}
