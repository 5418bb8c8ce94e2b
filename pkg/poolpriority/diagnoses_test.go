package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/compat/dryrun"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

// failed has the pod go through a cycle that finds no room, with its PostFilter plugins, and returns the cycle and what
// is said of it.
func (h *harness) failed(pod *v1.Pod) (*cycle, string, sets.Set[string]) {
	h.Helper()
	if err := h.shared.Core().V1().Pods().Informer().GetStore().Add(pod); err != nil { // preemption asks for it
		h.Fatal(err)
	}
	state := framework.NewCycleState()
	result, err := compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, pod)
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		h.Fatalf("%s: %v, %v", pod.Name, result.SuggestedHost, err)
	}
	_, status := h.sched.Profiles[ourProfile].RunPostFilterPlugins(h.ctx, state, pod, fit.Diagnosis.NodeToStatus)
	if status.IsSuccess() {
		h.Fatalf("%s preempts", pod.Name)
	}
	fit.Diagnosis.PostFilterMsg = status.Message()
	return mustCycle(h, state), fit.Error(), fit.Diagnosis.UnschedulablePlugins
}

// full is a cluster of full nodes, one of them tainted, and a closed virtual node.
func full(t testing.TB) *harness {
	h := newHarness(t, aks(t))
	h.fill()
	return h
}

func (h *harness) fill() {
	h.addNodes(virtualNode("virtual"), userNode("tainted").Taints([]v1.Taint{{Key: "dedicated", Value: "special", Effect: v1.TaintEffectNoSchedule}}))
	for i := range 5 {
		name := fmt.Sprint("user-", i)
		h.addNodes(userNode(name))
		h.place(pod(fmt.Sprint("filler-", i)).Req(map[v1.ResourceName]string{"cpu": "3500m"}).Obj(), name)
	}
	h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
}

func TestDiagnosisIsCached(t *testing.T) {
	h := full(t)
	big := func(name string) *v1.Pod { return pod(name).Req(map[v1.ResourceName]string{"cpu": "2"}).Obj() }
	first, said, plugins := h.failed(big("first"))
	if first.fromCache {
		t.Error("the first pod is not looked at")
	}
	second, again, same := h.failed(big("second"))
	if !second.fromCache {
		t.Error("the second pod is looked at in full")
	}
	if said != again || !plugins.Equal(same) || !second.flags.gateClosed.Load() {
		t.Errorf("%q by %v, and then %q by %v, held %t", said, plugins, again, same, second.flags.gateClosed.Load())
	}
	if _, ok := h.plugin.gatekeeper.Held().Lookup("second"); !ok {
		t.Error("the second pod is not held")
	}
	if want := "0/7 nodes are available: 1 node(s) had untolerated taint(s)"; !strings.HasPrefix(said, want) {
		t.Errorf("%q does not begin with %q", said, want)
	}
}

// TestDiagnosisIsNotCached: pods that Filters reject by more than their node and their kind are looked at each time.
func TestDiagnosisIsNotCached(t *testing.T) {
	tests := map[string]func(b *st.PodWrapper) *st.PodWrapper{
		"a host port": func(b *st.PodWrapper) *st.PodWrapper { return b.HostPort(80) },
		"spreading": func(b *st.PodWrapper) *st.PodWrapper {
			return b.SpreadConstraint(1, v1.LabelHostname, v1.DoNotSchedule, st.MakeLabelSelector().Exists("app").Obj(), nil, nil, nil, nil)
		},
		"one node": func(b *st.PodWrapper) *st.PodWrapper {
			return b.NodeAffinityIn("metadata.name", []string{"user-1"}, st.NodeSelectorTypeMatchFields)
		},
		"a nomination": func(b *st.PodWrapper) *st.PodWrapper { return b.NominatedNodeName("user-1") },
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := full(t)
			for i := range 3 {
				p := tc(pod(fmt.Sprint("pod-", i)).Req(map[v1.ResourceName]string{"cpu": "2"})).Obj()
				if c, said, _ := h.failed(p); c.fromCache {
					t.Errorf("pod %d is not looked at: %s", i, said)
				}
			}
		})
	}
}

// TestDiagnosisWithNamespace: an anti-affinity of others rejects a pod because of its namespace's labels, until these
// change.
func TestDiagnosisWithNamespace(t *testing.T) {
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}}
	h := must.Get(tryHarness(t, aks(t), namespace))(t)
	informer := h.shared.Core().V1().Namespaces().Informer()
	go informer.Run(h.Context().Done())
	h.watches("namespaces")
	must.Eventually(t, "the namespace is known", informer.HasSynced)
	h.addNodes(userNode("user"))
	lonely := pod("lonely").PodAntiAffinityExists("app", v1.LabelHostname, st.PodAntiAffinityWithRequiredReq).Obj()
	lonely.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector = metav1.SetAsLabelSelector(namespace.Labels)
	h.place(lonely, "user")
	state := framework.NewCycleState()
	_, err := compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, pod("early").Label("app", "a").Obj())
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		t.Fatal(err)
	}
	h.plugin.namespaces.Add(1) // as if the labels had changed during the cycle
	h.plugin.diagnoses.remember(mustCycle(t, state), fit.Diagnosis.NodeToStatus)
	for i := range 3 {
		if c, said, _ := h.failed(pod(fmt.Sprint("pod-", i)).Label("app", "a").Obj()); c.fromCache != (i > 0) {
			t.Errorf("pod %d is from the cache: %t: %s", i, c.fromCache, said)
		}
	}
	namespace.Labels["team"] = "b"
	_ = must.Get(h.client.CoreV1().Namespaces().Update(h.ctx, namespace, metav1.UpdateOptions{}))(t)
	must.Eventually(t, "the pod has a node", func() bool {
		node, _ := h.schedule(pod("last").Label("app", "a").Obj())
		return node == "user"
	})
}

// TestDiagnosisWithNominated: a node without room but for pods that are nominated to it is asked again, since they may
// go orphaned.
func TestDiagnosisWithNominated(t *testing.T) {
	h := full(t)
	h.addNodes(userNode("kept"))
	nominee := pod("nominee").Priority(10).NominatedNodeName("kept").Req(map[v1.ResourceName]string{"cpu": "4"}).Obj()
	w := &world{harness: h}
	w.park(nominee)
	big := func(name string) *v1.Pod { return pod(name).Req(map[v1.ResourceName]string{"cpu": "2"}).Obj() }
	h.failed(big("first"))
	if c, _, _ := h.failed(big("second")); !c.fromCache {
		t.Error("one node that is kept for another pod keeps the others from being remembered")
	}
	h.sched.SchedulingQueue.DeleteNominatedPodIfExists(nominee)
	if node, err := h.schedule(big("third")); err != nil || node != "kept" {
		t.Errorf("once nobody is nominated to the node, a pod is on %q: %v", node, err)
	}
}

// TestOtherPostFilter: beside a PostFilter plugin that is not known, which may preempt anybody, nothing is repeated,
// and it is told of all nodes.
func TestOtherPostFilter(t *testing.T) {
	cfg := aks(t)
	cfg.Profiles[0].Plugins.PostFilter.Enabled = append(cfg.Profiles[0].Plugins.PostFilter.Enabled, schedconfig.Plugin{Name: "Greedy"})
	other := &greedy{}
	h, err := tryHarnessWith(t, cfg, frameworkruntime.Registry{"Greedy": func(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		other.handle = handle
		return other, nil
	}})
	must.NoError(t, err)
	h.fill()
	for i := range 3 {
		other.told = 0
		if c, _, _ := h.failed(pod(fmt.Sprint("pod-", i)).Req(map[v1.ResourceName]string{"cpu": "2"}).Obj()); c.fromCache {
			t.Errorf("pod %d is not looked at", i)
		}
		if other.told != 5 {
			t.Errorf("for pod %d the plugin is told of %d nodes, want the 5 full ones", i, other.told)
		}
	}
}

// greedy is a PostFilter plugin.
type greedy struct {
	handle fwk.Handle
	told   int
}

func (g *greedy) Name() string { return "Greedy" }

func (g *greedy) PostFilter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	nodes, err := statuses.NodesForStatusCode(g.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	g.told = len(nodes)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// TestManyKinds: of many kinds of pods in one namespace, and one in another, each is looked at in full once. So are
// kinds whose statuses are all different.
func TestManyKinds(t *testing.T) {
	h := full(t)
	ask := func(namespace string, i int) bool {
		p := pod(fmt.Sprint("pod-", i)).Namespace(namespace).Req(map[v1.ResourceName]string{"cpu": fmt.Sprintf("%dm", 2000+i)}) // not by extended resources, which claims may provide from 1.36 on
		c, _, _ := h.failed(p.Obj())
		return c.fromCache
	}
	const kinds = 1500
	for i := range kinds {
		if ask("many", i) {
			t.Fatalf("kind %d is repeated before it was looked at", i)
		}
	}
	if ask("few", kinds) || !ask("few", kinds) {
		t.Error("a kind of another namespace is not looked at once")
	}
	for i := range kinds {
		if !ask("many", i) {
			t.Fatalf("kind %d is looked at twice", i)
		}
	}
	if !ask("few", 3) {
		t.Error("a kind is looked at once in each namespace")
	}
	f := &h.plugin.diagnoses
	if len(f.byFilterKey) != kinds+1 || len(f.namespaces) != 2 || f.namespaces["many"].keys != kinds || f.namespaces["few"].keys != 1 {
		t.Errorf("the cache has %d kinds, %+v", len(f.byFilterKey), f.namespaces)
	}
}

// TestCacheShrinks: the namespace that uses most of the cache loses keys, by number and by the size of their texts.
func TestCacheShrinks(t *testing.T) {
	const slots = 488 // with entryBytes, 1,000 bytes
	for _, tc := range []struct {
		name  string
		keys  map[string]int // by namespace
		texts map[string]int // the bytes of each key's texts, by namespace
		most  int
		want  map[string]int // keys that are left, by namespace
	}{
		{"all fit", map[string]int{"many": 90, "few": 10}, nil, 100_000, map[string]int{"many": 90, "few": 10}},
		{"many kinds", map[string]int{"many": 190, "few": 10, "fewer": 1}, nil, 100_000, map[string]int{"many": 89, "few": 10, "fewer": 1}},
		{"large kinds", map[string]int{"large": 20, "many": 50}, map[string]int{"large": 9000}, 150_000, map[string]int{"large": 10, "many": 50}},
		{"two of a size", map[string]int{"a": 100, "b": 100}, nil, 100_000, map[string]int{"a": 50, "b": 50}},
		{"one that is too large", map[string]int{"a": 1}, map[string]int{"a": 1_000_000}, 100_000, map[string]int{}},
	} {
		f := diagnosisCache{byFilterKey: map[string]*cachedDiagnosis{}, namespaces: map[string]cacheSize{}}
		for namespace, n := range tc.keys {
			for i := range n {
				known := &cachedDiagnosis{namespace: namespace}
				f.byFilterKey[fmt.Sprint(namespace, i)] = known
				f.resize(known, 1, tc.texts[namespace])
			}
		}
		f.shrink(tc.most, slots)
		got := map[string]int{}
		for _, known := range f.byFilterKey {
			got[known.namespace]++
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want,+got):\n%s", tc.name, diff)
		}
		for namespace, n := range got {
			if part := f.namespaces[namespace]; part != (cacheSize{n, n * tc.texts[namespace]}) || len(f.namespaces) != len(got) {
				t.Errorf("%s: namespace %s has %+v of %+v", tc.name, namespace, part, f.namespaces)
			}
		}
	}
}

// TestManyStatuses: of a kind with more different statuses than the cache holds, the other nodes are looked at each
// time.
func TestManyStatuses(t *testing.T) {
	f := &diagnosisCache{namespaces: map[string]cacheSize{}}
	known := &cachedDiagnosis{}
	known.grow(maxAnswers + 10)
	for i := range maxAnswers + 10 {
		for range 2 {
			f.note(known, i, fwk.NewStatus(fwk.Unschedulable, fmt.Sprint("reason ", i)).WithPlugin("p"))
		}
	}
	known.newest = 7
	for i := range maxAnswers + 10 {
		if known.has(i, 7) != (i < maxAnswers) || known.has(i, 8) {
			t.Errorf("slot %d: cached %t, and for a changed node %t", i, known.has(i, 7), known.has(i, 8))
		}
		if i < maxAnswers && known.answers[known.numbers[i]-1].Message() != fmt.Sprint("reason ", i) {
			t.Errorf("slot %d has %v", i, known.answers[known.numbers[i]-1])
		}
	}
}

// TestSlotOfABurstNode: a virtual node that takes the slot of a VM does not get the VM's status.
func TestSlotOfABurstNode(t *testing.T) {
	h := full(t)
	big := func(name string) *v1.Pod { return pod(name).Req(map[v1.ResourceName]string{"cpu": "2"}).Obj() }
	h.failed(big("first"))
	h.failed(big("second"))
	h.remove("filler-2")
	must.NoError(t, h.sched.Cache.RemoveNode(h.logger, h.node("user-2")))
	h.addNodes(virtualNode("virtual-2"))
	for _, name := range []string{"third", "fourth"} {
		c, said, _ := h.failed(big(name))
		for _, want := range []string{"4 Insufficient cpu", "2 node(s) in a burst pool"} {
			if !c.fromCache || !strings.Contains(said, want) {
				t.Errorf("the %s, from the cache: %t; %q has no %q", name, c.fromCache, said, want)
			}
		}
	}
	h.setCapacity(nodegroups.Full, nodegroups.Full)
	if node, err := h.schedule(big("fifth")); err != nil || !strings.HasPrefix(node, "virtual") {
		t.Errorf("once the gate is open, a pod is on %q: %v", node, err)
	}
}

// TestDiagnosesAgainstFullCycles: in random histories of a small cluster, each failure that is repeated is what a cycle
// that looks at all nodes ends with: what is said of it, by which plugins, what PostFilter makes of it, and what is
// noted for the gate. A pod preempts others if, and only if, in-tree preemption that looks at all nodes finds victims,
// and on one of the best-ranked nodes with the least harm. It takes at most as many dry runs, unless it makes
// room before it bursts.
func TestDiagnosesAgainstFullCycles(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			h := &history{harness: newHarness(t, aks(t)), r: rand.New(rand.NewPCG(seed, 7)), nodes: map[string]*v1.Node{}}
			h.addNodes(virtualNode("virtual"))
			h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
			h.victims(func(string) {}) // they leave when change says so
			kept := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default"},
				Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}}
			must.NoError(t, h.shared.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(kept))
			for i := range 12 {
				h.come(fmt.Sprint("node-", i))
				h.gone = append(h.gone, fmt.Sprint("node-", 12+i)) // comes later: the cluster grows
			}
			var runs atomic.Int32
			tree := h.plugin.preemption.Interface.Interface
			h.plugin.preemption.Interface.Interface = &dryrun.Interface{Interface: tree, Around: func(_ context.Context, _ fwk.CycleState, _ *v1.Pod, _ fwk.NodeInfo, do func() dryrun.Result) dryrun.Result {
				runs.Add(1)
				return do()
			}}
			repeated, preempted, fewer, beside := 0, 0, 0, 0
			for i := range 3000 {
				h.change()
				p := h.pod(fmt.Sprint("pod-", i))
				if err := h.shared.Core().V1().Pods().Informer().GetStore().Add(p); err != nil { // preemption asks for it
					t.Fatal(err)
				}
				runs.Store(0)
				got := h.outcome(p)
				if got.node != "" {
					h.take(p, got.node)
					continue
				}
				candidates, most := h.candidates(p, tree)
				makesRoom := h.plugin.preemption.cycle.below != math.MaxInt32 // then a dry run without the limit is made again with it
				if runs.Load() > int32(most) && !makesRoom {                  //nolint:gosec // small
					t.Fatalf("%s (step %d): %d dry runs, default makes %d", p.Name, i, runs.Load(), most)
				}
				if want := h.best(candidates); got.preempts != "" && !slices.Contains(want, got.preempts) || got.preempts == "" && len(want) > 0 {
					t.Fatalf("%s (step %d, priority %d): preempts on %q, want one of %v: %+v", p.Name, i, *p.Spec.Priority, got.preempts, want, got)
				}
				if most > int(runs.Load()) {
					fewer++
				}
				if got.preempts != "" {
					preempted++
					h.preempted(p, got.preempts, candidates[got.preempts])
				}
				if !got.fromCache {
					continue
				}
				repeated++
				if most > 0 && len(h.nominees) > 0 {
					beside++
				}
				known := h.plugin.diagnoses
				h.plugin.diagnoses = diagnosisCache{}
				want := h.outcome(p)
				h.plugin.diagnoses = known
				if len(h.nominees) > 0 { // they take room of nodes that had none before, too, and may add reasons
					got.said, want.said = "", ""
				}
				if want.fromCache = true; got != want {
					t.Fatalf("%s (step %d):\n%+v, but with a look at all nodes\n%+v", p.Name, i, got, want)
				}
			}
			if repeated < 100 {
				t.Errorf("%d failures were repeated: the test covers little", repeated)
			}
			if preempted < 100 || fewer < 100 || beside < 100 {
				t.Errorf("%d pods preempted others, %d needed fewer dry runs, %d failures were repeated beside nominated pods: the test covers little", preempted, fewer, beside)
			}
		})
	}
}

// history is of a small cluster whose nodes and pods change.
type history struct {
	*harness
	r       *rand.Rand
	nodes   map[string]*v1.Node
	gone    []string // names that nodes had
	assumed []*v1.Pod

	nominees []*v1.Pod // preempted others, and keep the room
	ending   []string  // their victims
}

// candidates is the victims by node that in-tree preemption finds for the pod when it looks at all nodes, and the
// number of those nodes.
func (h *history) candidates(p *v1.Pod, tree preemption.Interface) (map[string]*extenderv1.Victims, int) {
	known, ev := h.plugin.diagnoses, h.plugin.preemption.evaluator
	ours := ev.Interface
	h.plugin.diagnoses, ev.Interface = diagnosisCache{}, tree
	defer func() { h.plugin.diagnoses, ev.Interface = known, ours }()
	state := framework.NewCycleState()
	_, err := compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, p)
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		h.Fatalf("%s failed, and when it is looked at: %v", p.Name, err)
	}
	nodes := must.Get(fit.Diagnosis.NodeToStatus.NodesForStatusCode(h.sched.Profiles[ourProfile].SnapshotSharedLister().NodeInfos(), fwk.Unschedulable))(h)
	if p.Spec.PreemptionPolicy != nil || len(nodes) == 0 || mustCycle(h, state).flags.passing.Load() {
		return nil, 0
	}
	budgets := must.Get(ev.PdbLister.List(labels.Everything()))(h)
	candidates, _, err := ev.DryRunPreemption(h.ctx, state, p, nodes, budgets, 0, int32(len(nodes))) //nolint:gosec // small
	must.NoError(h, err)
	return h.plugin.preemption.CandidatesToVictimsMap(candidates), len(nodes)
}

// best is the best-ranked nodes with the least harm.
func (h *history) best(candidates map[string]*extenderv1.Victims) (best []string) {
	var least []int64
	for _, node := range slices.Sorted(maps.Keys(candidates)) {
		harm := harmOf(candidates[node])
		cost := append(harm[:], int64(max(naiveRank(h.node(node)), 0)))
		switch order := slices.Compare(cost, least); {
		case least == nil || order < 0:
			least, best = cost, []string{node}
		case order == 0:
			best = append(best, node)
		}
	}
	return best
}

// preempted has the node keep the room for the pod, until change ends that.
func (h *history) preempted(p *v1.Pod, node string, victims *extenderv1.Victims) {
	p = p.DeepCopy()
	p.Status.NominatedNodeName = node
	w := &world{harness: h.harness}
	w.victimsOf(p)
	w.park(p)
	h.nominees = append(h.nominees, p)
	for _, victim := range victims.Pods {
		h.ending = append(h.ending, victim.Name)
	}
}

// outcome is the result of a scheduling cycle.
type outcome struct {
	node, preempts                       string
	said, plugins, code, nominated       string
	gateClosed, passing, awaitsGateTaint bool
	fromCache                            bool
}

func (h *history) outcome(p *v1.Pod) outcome {
	state := framework.NewCycleState()
	result, err := compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, p)
	if err == nil {
		return outcome{node: result.SuggestedHost}
	}
	var fit *framework.FitError
	if !errors.As(err, &fit) || len(fit.Diagnosis.PendingPlugins) > 0 {
		h.Fatalf("%s: %v", p.Name, err)
	}
	post, status := h.sched.Profiles[ourProfile].RunPostFilterPlugins(h.ctx, state, p, fit.Diagnosis.NodeToStatus)
	fit.Diagnosis.PostFilterMsg = status.Message()
	c := mustCycle(h, state)
	o := outcome{said: fit.Error(), plugins: fmt.Sprint(sets.List(fit.Diagnosis.UnschedulablePlugins)), code: status.Code().String(), fromCache: c.fromCache,
		gateClosed: c.flags.gateClosed.Load(), passing: c.flags.passing.Load(), awaitsGateTaint: c.flags.awaitsGateTaint.Load()}
	if post != nil && post.NominatingInfo != nil {
		o.nominated, o.preempts = fmt.Sprintf("%v %q", post.Mode(), post.NominatedNodeName), post.NominatedNodeName
	}
	return o
}

// come adds a node, or changes the one of that name.
func (h *history) come(name string) {
	b := userNode(name)
	switch h.r.IntN(6) {
	case 0, 1:
		b = systemNode(name)
	case 2:
		b = b.Label("type", "virtual-kubelet") // in a regular pool: never used
	}
	node := b.Label("disk", []string{"ssd", "hdd"}[h.r.IntN(2)]).Label("zone", fmt.Sprint(h.r.IntN(3))).Obj()
	node.Spec.Unschedulable = h.r.IntN(8) == 0
	if h.r.IntN(4) == 0 {
		node.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: fmt.Sprint(h.r.IntN(2)), Effect: []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute}[h.r.IntN(2)]}}
	}
	if h.r.IntN(4) == 0 {
		node.Status.Allocatable[v1.ResourceEphemeralStorage] = resource.MustParse("10Gi")
	}
	if h.r.IntN(4) == 0 {
		node.Status.Allocatable["example.com/gpu"] = resource.MustParse("2")
	}
	if old := h.nodes[name]; old != nil {
		h.sched.Cache.UpdateNode(h.logger, old, node)
	} else {
		h.sched.Cache.AddNode(h.logger, node)
		if daemon := "daemon-" + name; h.bound[daemon] == nil {
			h.place(pod(daemon).Priority(-1).Req(map[v1.ResourceName]string{"cpu": "100m"}).Obj(), name)
		}
	}
	h.nodes[name] = node
}

// some is one of the keys.
func some[V any](r *rand.Rand, m map[string]V) string {
	return slices.Sorted(maps.Keys(m))[r.IntN(len(m))]
}

// change changes the cluster a little.
func (h *history) change() {
	switch n := h.r.IntN(16); {
	case n == 14 && len(h.ending) > 0:
		if _, ok := h.bound[h.ending[0]]; ok {
			h.remove(h.ending[0])
		}
		h.ending = h.ending[1:]
	case n == 15 && len(h.nominees) > 0, len(h.nominees) > 3:
		compat.Dequeue(h.logger, h.sched, h.nominees[0])
		h.nominees = h.nominees[1:]
	case n == 0 && len(h.nodes) > 6: // its pods stay
		name := some(h.r, h.nodes)
		must.NoError(h, h.sched.Cache.RemoveNode(h.logger, h.nodes[name]))
		delete(h.nodes, name)
		h.gone = append(h.gone, name)
	case n == 1 && len(h.gone) > 0:
		h.come(h.gone[0])
		h.gone = h.gone[1:]
	case n == 2:
		h.come(some(h.r, h.nodes))
	case n < 5 && len(h.bound) > 0:
		h.remove(some(h.r, h.bound))
	case n == 5 && len(h.bound) > 0: // it is resized
		name := some(h.r, h.bound)
		changed := h.bound[name].DeepCopy()
		changed.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse(fmt.Sprint(1 + h.r.IntN(3)))
		must.NoError(h, h.sched.Cache.UpdatePod(h.logger, h.bound[name], changed))
		h.bound[name] = changed
	case n == 6 && len(h.assumed) > 0: // its binding failed
		must.NoError(h, h.sched.Cache.ForgetPod(h.logger, h.assumed[0]))
		h.assumed = h.assumed[1:]
	case n == 7:
		h.setCapacity([]nodegroups.State{nodegroups.CanGrow, nodegroups.CanGrow, nodegroups.CanGrow, nodegroups.Full}[h.r.IntN(4)], nodegroups.Full)
	}
}

// pod is one of some hundred kinds, which differ in what Filters read of them.
func (h *history) pod(name string) *v1.Pod {
	requests := map[v1.ResourceName]string{"cpu": fmt.Sprint(1 + h.r.IntN(3))}
	if h.r.IntN(4) == 0 {
		requests["ephemeral-storage"] = "6Gi"
	}
	if h.r.IntN(4) == 0 {
		requests["example.com/gpu"] = "1"
	}
	b := pod(name).Priority([]int32{0, 0, 0, 5, 10}[h.r.IntN(5)]).Label("app", []string{"kept", "other"}[h.r.IntN(2)]).Label("tier", []string{"web", "db"}[h.r.IntN(2)]).Req(requests)
	switch h.r.IntN(6) {
	case 0:
		b = b.NodeSelector(map[string]string{"disk": "ssd"})
	case 1:
		b = b.NodeAffinityIn("disk", []string{"hdd"}, st.NodeSelectorTypeMatchExpressions)
	case 2:
		b = b.NodeAffinityNotIn(metav1.ObjectNameField, []string{"node-1", "node-2"})
	}
	switch h.r.IntN(8) { // the others' pods decide
	case 0:
		b = b.PodAntiAffinityIn("tier", "zone", []string{"web"}, st.PodAntiAffinityWithRequiredReq)
	case 1:
		b = b.PodAffinityIn("app", "zone", []string{"kept"}, st.PodAffinityWithRequiredReq)
	case 2:
		b = b.SpreadConstraint(1, "zone", v1.DoNotSchedule, st.MakeLabelSelector().Exists("app").Obj(), nil, nil, nil, nil)
	}
	p := b.Obj()
	if h.r.IntN(2) == 0 {
		p.Spec.Tolerations = []v1.Toleration{[]v1.Toleration{
			{Key: "dedicated", Operator: v1.TolerationOpExists},
			{Key: "dedicated", Operator: v1.TolerationOpEqual, Value: "0", Effect: v1.TaintEffectNoSchedule},
			{Key: "dedicated", Operator: v1.TolerationOpEqual, Value: "1", Effect: v1.TaintEffectNoSchedule},
			{Key: "dedicated", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule},
			{Key: "dedicated", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute},
			{Key: "dedicated", Operator: v1.TolerationOpEqual, Effect: v1.TaintEffectNoSchedule},
			{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists},
		}[h.r.IntN(7)]}
	}
	if h.r.IntN(6) == 0 {
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}}
	}
	if h.r.IntN(4) == 0 {
		p.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever)
	}
	return p
}

// take has the pod on the node: bound, or on its way there.
func (h *history) take(p *v1.Pod, node string) {
	if h.r.IntN(6) > 0 {
		h.place(p, node)
		return
	}
	assumed := p.DeepCopy()
	assumed.Spec.NodeName = node
	must.NoError(h, h.sched.Cache.AssumePod(h.logger, assumed))
	h.assumed = append(h.assumed, assumed)
}

// TestNarrowedIsNotRemembered: that a node is in a worse pool than one that had room says nothing of the next pod.
func TestNarrowedIsNotRemembered(t *testing.T) {
	h := full(t)
	p := pod("p").Req(map[v1.ResourceName]string{"cpu": "2"}).Obj()
	state := framework.NewCycleState()
	_, err := compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, p)
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		t.Fatal(err)
	}
	c := *mustCycle(t, state)
	c.worst = 0
	h.plugin.diagnoses.remember(&c, fit.Diagnosis.NodeToStatus)
	if n := len(h.plugin.diagnoses.byFilterKey); n > 0 {
		t.Errorf("%d kinds are remembered", n)
	}
	c.worst = anyRank
	h.plugin.diagnoses.remember(&c, fit.Diagnosis.NodeToStatus)
	if n := len(h.plugin.diagnoses.byFilterKey); n != 1 {
		t.Errorf("%d kinds are remembered, want 1", n)
	}
}

// TestSlotsOfNodesThatAreGone: nodes that come and go, one at a time, take no more slots than there were nodes at once.
func TestSlotsOfNodesThatAreGone(t *testing.T) {
	h := full(t)
	h.cycles(1, func(int) *v1.Pod { return pod("first").Obj() })
	nodes := len(h.plugin.index.positions)
	for i := range 20 {
		name := fmt.Sprint("spot-", i)
		h.addNodes(userNode(name))
		h.cycles(1, func(int) *v1.Pod { return pod("comes").Obj() })
		must.NoError(t, h.sched.Cache.RemoveNode(h.logger, h.node(name)))
		h.cycles(1, func(int) *v1.Pod { return pod("goes").Obj() })
	}
	if n := len(h.plugin.index.positions); n != nodes+1 {
		t.Errorf("%d slots, want %d", n, nodes+1)
	}
}

// TestSlots: nodes keep their slots, and new ones get those of nodes that are gone.
func TestSlots(t *testing.T) {
	h := full(t)
	h.cycles(1, func(int) *v1.Pod { return pod("first").Obj() })
	before := maps.Clone(h.plugin.index.slotOf)
	must.NoError(t, h.sched.Cache.RemoveNode(h.logger, h.node("tainted")))
	h.addNodes(userNode("a"), userNode("b"))
	h.cycles(1, func(int) *v1.Pod { return pod("second").Obj() })
	after := h.plugin.index.slotOf
	if len(h.plugin.index.positions) != len(before)+1 || len(after) != len(before)+1 {
		t.Errorf("%d slots for %d nodes, want %d", len(h.plugin.index.positions), len(after), len(before)+1)
	}
	taken := map[int]string{}
	for name, slot := range after {
		if old, ok := before[name]; ok && old != slot {
			t.Errorf("%s had slot %d and has %d", name, old, slot)
		}
		if other, ok := taken[slot]; ok {
			t.Errorf("%s and %s have slot %d", name, other, slot)
		}
		taken[slot] = name
	}
	for i, info := range mustNodes(t, h) {
		if slot := h.plugin.index.slots[i]; slot != after[info.Node().Name] {
			t.Errorf("position %d has slot %d, its node %d", i, slot, after[info.Node().Name])
		}
	}
}

func mustNodes(t testing.TB, h *harness) []fwk.NodeInfo {
	nodes := must.Get(h.sched.Profiles[ourProfile].SnapshotSharedLister().NodeInfos().List())(t)
	return nodes
}

// node is the snapshot's.
func (h *harness) node(name string) *v1.Node {
	info := must.Get(h.sched.Profiles[ourProfile].SnapshotSharedLister().NodeInfos().Get(name))(h)
	return info.Node()
}
