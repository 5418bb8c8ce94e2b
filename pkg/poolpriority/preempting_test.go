package poolpriority

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

// TestPreemptionPrefersBetterPools: of nodes where preemption does equally little harm it takes one of the best-ranked
// pool, although in-tree preemption prefers victims that started late; and where the harm differs, that comes first.
func TestPreemptionPrefersBetterPools(t *testing.T) {
	started := func(p *st.PodWrapper, ago time.Duration) *v1.Pod {
		return p.StartTime(metav1.NewTime(time.Now().Add(-ago))).Obj()
	}
	for _, tc := range []struct {
		name         string
		user, system []*v1.Pod
		budget       bool // keeps pods with the label app=kept
		want         string
	}{
		{"equal victims", []*v1.Pod{started(pod("a"), time.Hour)}, []*v1.Pod{started(pod("b"), time.Minute)}, false, "a"},
		{"a lower priority", []*v1.Pod{pod("a").Priority(5).Obj()}, []*v1.Pod{pod("b").Obj()}, false, "b"},
		{"fewer victims", []*v1.Pod{half("a"), half("a2")}, []*v1.Pod{pod("b").Obj()}, false, "b"},
		{"a budget", []*v1.Pod{pod("a").Label("app", "kept").Obj()}, []*v1.Pod{pod("b").Priority(5).Obj()}, true, "b"},
		{"equal victims, and the pod's order has system first", []*v1.Pod{started(pod("a"), time.Minute)}, []*v1.Pod{started(pod("b"), time.Hour)}, false, "b"},
		{"only the worse pool has victims", []*v1.Pod{pod("a").Priority(100).Obj()}, []*v1.Pod{pod("b").Obj()}, false, "b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := aks(t)
			addOrder(cfg)
			h := newHarness(t, cfg)
			victims := h.countVictims()
			small := map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}
			h.addNodes(userNode("user-1").Capacity(small), systemNode("system-1").Capacity(small))
			h.setCapacity(nodegroups.CanGrow, nodegroups.CanGrow)
			for _, p := range tc.user {
				h.place(p, "user-1")
			}
			for _, p := range tc.system {
				h.place(p, "system-1")
			}
			if tc.budget {
				kept := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default"},
					Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}}
				must.NoError(t, h.shared.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(kept))
			}
			high := pod("high").Priority(10)
			if strings.Contains(tc.name, "order") {
				high = high.Annotation(pool.OrderAnnotation, "system-first")
			}
			_ = h.fail(high.Obj())
			if got := victims(); len(got) != 1 || got[0] != tc.want {
				t.Errorf("%v were preempted, want %s", got, tc.want)
			}
		})
	}
}

func half(name string) *v1.Pod {
	return st.MakePod().Name(name).UID(name).Namespace("default").Req(map[v1.ResourceName]string{"cpu": "500m"}).Obj()
}

// TestVictimGoneAlready: a pod whose victim was deleted before it could be, with an event that came while the pod was
// in its cycle, does not wait for the queue's flush beside its free place.
func TestVictimGoneAlready(t *testing.T) {
	h := newHarness(t, aks(t))
	other := st.MakePod().Name("other").UID("other").Namespace("default").Obj()
	pods := h.shared.Core().V1().Pods().Informer().GetIndexer()
	must.NoError(t, pods.Add(other))
	h.preemptsOne(t, other)
	h.remove("low")
	time.AfterFunc(time.Minute, h.sched.SchedulingQueue.Close) // the queue's flush is after 5 minutes
	for range 2 {                                              // another may have to go, too
		info, _ := compat.NextPod(h.logger, h.sched)
		if info == nil || info.Pod.Name != "high" {
			t.Fatalf("%v is tried, want the pod high within a minute", info)
		}
		info.UnschedulablePlugins = sets.New(names.NodeResourcesFit)
		must.NoError(t, compat.AddUnschedulable(h.logger, h.sched, info))
		h.sched.SchedulingQueue.Done(info.Pod.UID)
		must.NoError(t, pods.Delete(other))
	}
}

// preemptsOne lets the pod high preempt the pod low on the only VM. The listers, and the API, do not have the pod low.
func (h *harness) preemptsOne(t *testing.T, beside ...*v1.Pod) {
	t.Helper()
	h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}))
	h.setCapacity(nodegroups.CanGrow, nodegroups.CanGrow)
	for _, p := range append(beside, pod("low").Priority(0).Obj()) {
		h.place(p, "user-1")
	}
	high := pod("high").Priority(10).Obj()
	must.NoError(t, h.shared.Core().V1().Pods().Informer().GetIndexer().Add(high))
	compat.Enqueue(h.ctx, h.sched, high)
	h.sched.ScheduleOne(h.ctx)
	if n := len(h.sched.SchedulingQueue.NominatedPodsForNode("user-1")); n != 1 {
		t.Fatalf("%d pods are nominated for the node, want 1", n)
	}
}

// TestNominationToNoNode: if the node to which a pod is nominated does not exist any more, the pod's next cycle clears
// the nomination, whether or not the pod may preempt others. From 1.36 on, the cluster autoscaler ignores the pod until
// then.
func TestNominationToNoNode(t *testing.T) {
	never, whileItLeads := v1.PreemptNever, time.Hour
	for _, tc := range []struct {
		name      string
		nominated string
		policy    *v1.PreemptionPolicy
		lease     time.Duration
		cleared   bool
	}{
		{"a pod that may preempt, and finds no victim", "gone", nil, whileItLeads, true},
		{"a pod that preempts nobody", "gone", &never, whileItLeads, true},
		{"a cycle without preemption", "gone", nil, -time.Second, true},
		{"a node that exists", "user-1", &never, whileItLeads, false},
		{"no nomination", "", &never, whileItLeads, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.plugin.leadership = lease.NewLeadership()
			h.plugin.leadership.Extend(time.Now().Add(tc.lease))
			h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}))
			h.setCapacity(nodegroups.CanGrow, nodegroups.CanGrow)
			h.place(pod("equal").Priority(10).Obj(), "user-1")
			p := pod("high").Priority(10).Obj()
			p.Spec.PreemptionPolicy, p.Status.NominatedNodeName = tc.policy, tc.nominated
			must.NoError(t, h.shared.Core().V1().Pods().Informer().GetIndexer().Add(p))
			compat.Enqueue(h.ctx, h.sched, p)
			h.sched.ScheduleOne(h.ctx)
			cleared := slices.ContainsFunc(h.client.Actions(), func(a clienttesting.Action) bool {
				patch, ok := a.(clienttesting.PatchAction)
				return ok && strings.Contains(string(patch.GetPatch()), `"nominatedNodeName":null`)
			})
			if cleared != tc.cleared || tc.cleared && len(h.sched.SchedulingQueue.NominatedPodsForNode("gone")) > 0 {
				t.Errorf("cleared: %v, want %v; %v", cleared, tc.cleared, h.client.Actions())
			}
		})
	}
}

// TestPreemptionArguments: the dry run collects as many candidates as the profile's own preemption.
func TestPreemptionArguments(t *testing.T) {
	cfg := aks(t)
	for _, c := range cfg.Profiles[0].PluginConfig {
		if args, ok := c.Args.(*schedconfig.DefaultPreemptionArgs); ok {
			args.MinCandidateNodesPercentage, args.MinCandidateNodesAbsolute = 50, 1
		}
	}
	h := newHarness(t, cfg)
	if _, n := h.plugin.preemption.GetOffsetAndNumCandidates(1000); n != 500 {
		t.Errorf("%d candidates of 1000 nodes, want 500", n)
	}
}

// TestPreemptionAtPostFilterOnly: if the profile enables DefaultPreemption as a postFilter plugin only, preemption
// works as in the in-tree profile, and it is unknown which pods it preempts.
func TestPreemptionAtPostFilterOnly(t *testing.T) {
	cfg := aks(t)
	plugins := cfg.Profiles[0].Plugins
	plugins.MultiPoint.Enabled = slices.DeleteFunc(plugins.MultiPoint.Enabled, func(p schedconfig.Plugin) bool { return p.Name == names.DefaultPreemption })
	plugins.MultiPoint.Disabled = append(plugins.MultiPoint.Disabled, schedconfig.Plugin{Name: names.DefaultPreemption})
	plugins.PostFilter.Enabled = append(plugins.PostFilter.Enabled, schedconfig.Plugin{Name: names.DefaultPreemption})
	h := newHarness(t, cfg)
	if h.plugin.preemption != nil || h.plugin.byLoop {
		t.Error("the plugin counts on knowing what is preempted")
	}
	h.preemptsOne(t)
}
