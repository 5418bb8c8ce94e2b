package poolpriority

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

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

// TestLimits: 200 pods of many sizes, one after another; never is there more than the limits on the nodes, and what is
// left is used.
func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits configv1.BurstLimits
		within func(pods int, milliCPU, memory int64) bool
		least  int // placed
	}{
		{"pods", configv1.BurstLimits{Pods: 150}, func(pods int, _, _ int64) bool { return pods <= 150 }, 150},
		{"CPU", configv1.BurstLimits{CPU: ptr.To(resource.MustParse("100"))}, func(_ int, milliCPU, _ int64) bool { return milliCPU <= 100_000 }, 60},
		{"memory", configv1.BurstLimits{Memory: ptr.To(resource.MustParse("150G"))}, func(_ int, _, memory int64) bool { return memory <= 150e9 }, 60},
		{"all", configv1.BurstLimits{Pods: 90, CPU: ptr.To(resource.MustParse("99")), Memory: ptr.To(resource.MustParse("150G"))},
			func(pods int, milliCPU, memory int64) bool {
				return pods <= 90 && milliCPU <= 99_000 && memory <= 150e9
			}, 60},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := withLimits(t, tc.limits)
			var milliCPU, memory int64
			placed := 0
			for i := range 200 {
				p := st.MakePod().Name(fmt.Sprint("p", i)).UID(fmt.Sprint("p", i)).Namespace("default").SchedulerName(ourProfile)
				cpu, bytes := int64(1000), int64(1_500_000_000) // what is billed for a container that requests nothing
				if i%3 > 0 {
					cpu, bytes = int64(i%7+1)*300, int64(i%5+1)*500_000_000
					p = p.Req(map[v1.ResourceName]string{"cpu": fmt.Sprintf("%dm", cpu), "memory": fmt.Sprint(bytes)})
				} else {
					p = p.Container("image")
				}
				if _, err := h.schedule(p.Obj()); err != nil {
					if !strings.Contains(err.Error(), gate.ReasonBudgetSpent.Sentence) {
						t.Fatalf("pod %d was told %v", i, err)
					}
					if tc.within(placed+1, milliCPU+cpu, memory+bytes) {
						t.Fatalf("pod %d is held, and would fit beside %d pods, %dm and %d bytes", i, placed, milliCPU, memory)
					}
					continue
				}
				placed, milliCPU, memory = placed+1, milliCPU+cpu, memory+bytes
				if !tc.within(placed, milliCPU, memory) {
					t.Fatalf("after pod %d there are %d pods, %dm and %d bytes", i, placed, milliCPU, memory)
				}
			}
			if placed < tc.least {
				t.Errorf("%d pods were placed, want at least %d", placed, tc.least)
			}
		})
	}
}

// TestEndedPodFreesBudget: a pod that has ended takes nothing of it, although it is still on its node.
func TestEndedPodFreesBudget(t *testing.T) {
	h := withLimits(t, configv1.BurstLimits{Pods: 1})
	must.Do(t)(h.schedule(pod("first").Obj()))
	if _, err := h.schedule(pod("second").Obj()); err == nil {
		t.Fatal("the budget is overshot")
	}
	before := h.bound["first"]
	stuck := before.DeepCopy()
	stuck.Status = v1.PodStatus{Phase: v1.PodPending, Reason: "ProviderFailed"}
	must.NoError(t, h.sched.Cache.UpdatePod(h.logger, before, stuck))
	if _, err := h.schedule(pod("third").Obj()); err == nil {
		t.Fatal("a pod that is stuck takes nothing of the budget")
	}
	ended := stuck.DeepCopy()
	ended.Status = v1.PodStatus{Phase: v1.PodSucceeded}
	must.NoError(t, h.sched.Cache.UpdatePod(h.logger, stuck, ended))
	if _, err := h.schedule(pod("fourth").Obj()); err != nil {
		t.Errorf("after the end of the first: %v", err)
	}
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
			if !pools.IsBurst(pools.Of(node.Node().Labels)) {
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

// TestNamespacesShareThePool: pods of two namespaces, one after another. The first spends its budget, and the second
// still bursts. Pods that earlier cycles placed count. A DaemonSet takes only from its own namespace.
func TestNamespacesShareThePool(t *testing.T) {
	cfg := aks(t)
	setBurst(cfg, func(b *configv1.Burst) {
		b.Limits, b.PerNamespace = &configv1.BurstLimits{Pods: 10}, &configv1.BurstLimits{Pods: 6, CPU: ptr.To(resource.MustParse("5"))}
	})
	h := newHarness(t, cfg)
	h.addNodes(virtualNode("virtual-1"), virtualNode("virtual-2"))
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	for i := range 4 {
		daemon := pod(fmt.Sprint("daemon-", i)).Namespace("c").SchedulerName("other").Obj()
		daemon.OwnerReferences = owner("DaemonSet", "d")
		h.place(daemon, "virtual-1")
	}
	for _, tc := range []struct {
		namespace string
		burst     int // of 20 pods
		detail    string
	}{{"a", 5, "namespace a: 5 of 5 CPUs, the pod needs 1"}, {"c", 1, "namespace c: 5 of 5 CPUs, the pod needs 1"}, {"b", 4, "10 of 10 pods"}} {
		burst := 0
		for i := range 20 {
			p := pod(fmt.Sprint(tc.namespace, i)).Namespace(tc.namespace).Obj()
			_, err := h.schedule(p)
			if err == nil {
				burst++
				continue
			}
			if !strings.Contains(err.Error(), gate.ReasonBudgetSpent.Sentence) {
				t.Fatalf("a pod of namespace %s: %v", tc.namespace, err)
			}
			if d := h.plugin.decide(p, gate.Wait{}); d.Burst[2].Reason.Detail != tc.detail {
				t.Errorf("a pod of namespace %s: %q, want %q", tc.namespace, d.Burst[2].Reason.Detail, tc.detail)
			}
		}
		if burst != tc.burst {
			t.Errorf("%d pods of namespace %s burst, want %d", burst, tc.namespace, tc.burst)
		}
	}
	sign := func(namespace string) string {
		fragments, _ := h.plugin.SignPod(h.ctx, pod("p").Namespace(namespace).Obj())
		return fmt.Sprint(fragments[len(fragments)-1].Value)
	}
	if sign("a") == sign("b") {
		t.Error("the scheduler cannot tell pods of two namespaces apart")
	}
}
