package poolpriority

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// TestBurstUse: what is summed up of a node's pods is what is summed up anew, whatever came, went and changed.
func TestBurstUse(t *testing.T) {
	h := withLimits(t, configv1.BurstLimits{Pods: 1000})
	x := h.plugin.index
	check := func(when string) {
		t.Helper()
		snapshot := must.Get(h.sched.Profiles[ourProfile].SnapshotSharedLister().NodeInfos().List())(t)
		x.refresh(snapshot, false)
		var want aci.Use
		for _, node := range snapshot {
			for _, info := range node.GetPods() {
				want = want.Plus(aci.UseOf(info.GetPod(), h.plugin.pools.At(2).OnACI()))
			}
		}
		if got := x.burstUse()[2]; got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	cycle := func(name string) {
		t.Helper()
		must.Do(t)(h.schedule(pod(name).Req(map[v1.ResourceName]string{"cpu": fmt.Sprint(len(h.bound)%4 + 1)}).Obj()))
	}
	for i := range 20 {
		cycle(fmt.Sprint("p", i))
	}
	check("after 20 pods")
	for _, name := range []string{"p3", "p19", "p0"} {
		h.remove(name)
	}
	cycle("more")
	check("after some went")
	grown := h.bound["p5"].DeepCopy()
	grown.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("40")
	must.NoError(t, h.sched.Cache.UpdatePod(h.logger, h.bound["p5"], grown))
	h.bound["p5"] = grown
	cycle("last")
	check("after one grew")
}
