package poolpriority

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	backendcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/seed"
)

var (
	placements = flag.Int("placements", 70000, "placements of TestStrictOrder; a tenth as many at four times the nodes")
	nodes      = flag.Int("nodes", 150, "nodes of TestStrictOrder")
)

// TestStrictOrder compares every placement with brute force: each node of the snapshot through each in-tree filter.
func TestStrictOrder(t *testing.T) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.SchedulerAsyncPreemption) {
		t.Fatal("preemption is not asynchronous, as it is in the scheduler that ships")
	}
	for _, tc := range []struct {
		nodes int
		alike bool
		share float64 // of the placements
	}{{*nodes, false, 1}, {4 * *nodes, false, 0.1}, {*nodes, true, 0.3}} {
		name := fmt.Sprintf("%d nodes", tc.nodes)
		if tc.alike {
			name += ", pods alike"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rand.New(rand.NewPCG(seed.Of(t, 1), uint64(tc.nodes))), tc.nodes)
			w.alike = tc.alike
			placements := int(float64(*placements) * tc.share)
			if testing.Short() { // for the race detector
				placements /= 10
			}
			attempts := 0
			for ; w.placed < placements; attempts++ {
				w.step()
			}
			hints := must.Get(testutil.GetCounterMetricValue(metrics.BatchAttemptStats.WithLabelValues(ourProfile, metrics.BatchAttemptHintUsed)))(t)
			t.Logf("%d attempts: %d placed (%v by rank), %d unschedulable; %d with nominated pods about, %d preemptions, %d placed after one, %d with a volume, %.0f by batch hints so far",
				attempts, w.placed, w.byRank, w.unschedulable, w.nominated, w.preemptions, w.preempted, w.volumes, hints)
			t.Logf("%d failed as others of their kind had, %d of them with nobody nominated to a node", w.repeated, w.compared)
			t.Logf("%d tried while their victims were ending, %d of them beside a virtual node with room; %d would have preempted others while the gate was closed for a moment",
				w.early, w.patient, w.kept)
			if w.wrong > 0 || w.wronglyUnschedulable > 0 || w.wronglyPlaced > 0 {
				t.Errorf("%d pods in the wrong pool, %d wrongly unschedulable, %d on nodes that were not feasible", w.wrong, w.wronglyUnschedulable, w.wronglyPlaced)
			}
			if tc.nodes != *nodes {
				return // too few placements for the rare cases that are asked for below
			}
			if tc.alike {
				if w.repeated == 0 || w.compared == 0 {
					t.Error("no pod failed as others of its kind had: the test does not cover it")
				}
				return
			}
			if w.preempted == 0 || w.volumes == 0 || hints == 0 {
				t.Error("no pod was placed after preemption, with a volume or by a batch hint: the test does not cover it")
			}
			if w.kept == 0 || w.patient == 0 && !testing.Short() { // 165 of 70,000 placements were patient, and 0 or more of the 7,000 of -short
				t.Error("no pod waited for its victims beside a virtual node with room, or nobody was kept while the gate was closed for a moment: the test does not cover it")
			}
			for rank, n := range w.byRank {
				if n == 0 {
					t.Errorf("no pod was ever placed at rank %d: the test does not cover it", rank)
				}
			}
			if w.unschedulable == 0 {
				t.Error("no pod was ever unschedulable: the test does not cover it")
			}
		})
	}
}

// world is a random cluster of user, system, unlisted and virtual nodes.
type world struct {
	*harness
	r        *rand.Rand
	nodes    []*v1.Node
	size     int
	serial   int
	names    []string // of bound pods
	nominees []*v1.Pod
	gate     string

	alike      bool      // pods are of few kinds, nothing but nodes matters to them, and seldom is one nominated
	like       *v1.Pod   // the next pods are copies of it
	copies     int       // that many
	preemptors []*v1.Pod // wait for the room that their victims leave, or have left

	mu      sync.Mutex
	victims []string // of the preemption that is going on
	ending  []string // victims that are on their nodes still

	placed, unschedulable, nominated           int
	preemptions, preempted, volumes            int
	early, patient, kept, repeated, compared   int
	wrong, wronglyUnschedulable, wronglyPlaced int
	byRank                                     [4]int
}

func newWorld(t *testing.T, r *rand.Rand, size int) *world {
	cfg := aks(t)
	for _, c := range cfg.Profiles[0].PluginConfig {
		if args, ok := c.Args.(*schedconfig.PodTopologySpreadArgs); ok { // system defaults would allow no batching
			args.DefaultingType, args.DefaultConstraints = schedconfig.ListDefaulting, nil
		}
	}
	pluginArgs(cfg).Orders = []configv1.NamedOrder{{Name: "system-first", Pools: []string{"system", "aci"}}, {Name: "vms", Pools: []string{"user"}}}
	var objects []runtime.Object
	for zone := range 3 {
		objects = append(objects, disk(zone)...)
	}
	h := must.Get(tryHarness(t, cfg, objects...))(t)
	w := &world{harness: h, r: r, size: size}
	h.victims(func(pod string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.victims = append(w.victims, pod)
	})
	for range size {
		w.addNode()
	}
	w.setGate(closed)
	return w
}

// What holds the gate: nothing, pools that can grow, or, for a moment, a node that the scheduler has not seen.
const (
	open, closed, stale = "open", "closed", "orphaned"
)

// disk is a claim with its volume, which nodes of one zone can attach.
func disk(zone int) []runtime.Object {
	name, topology := fmt.Sprintf("disk-%d", zone), fmt.Sprintf("zone-%d", zone)
	return []runtime.Object{
		&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/bound-by-controller": "yes"}},
			Spec: v1.PersistentVolumeSpec{
				ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: name, UID: types.UID(name)},
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "disk.csi.azure.com", VolumeHandle: name}},
				NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{topology}}}}}}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
		},
		&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		},
	}
}

func (w *world) setGate(gate string) {
	w.gate = gate
	pools := []nodegroups.State{nodegroups.Full, nodegroups.Full}
	if gate == closed {
		// A pool that a pod cannot use does not hold the gate for it: both must hold it here.
		pools = []nodegroups.State{nodegroups.CanGrow, nodegroups.Growing}
	}
	view := w.viewOf(pools...)
	if gate == stale {
		view.Built = time.Now()
		for i := range pools {
			view.Pools[i].Nodes = 10 * w.size
		}
	}
	w.plugin.gatekeeper.Assume(view)
}

func (w *world) addNode() {
	w.serial++
	name := fmt.Sprintf("node-%d", w.serial)
	var b *st.NodeWrapper
	switch n := w.r.IntN(20); {
	case n < 9:
		b = userNode(name)
	case n < 16:
		b = systemNode(name)
	case n < 18:
		b = st.MakeNode().Name(name).Label(v1.LabelHostname, name).Capacity(map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "30"})
	case n < 19:
		b = virtualNode(name).Capacity(map[v1.ResourceName]string{"cpu": "8", "memory": "64Gi", "pods": "20"})
	default: // a virtual kubelet that matches a regular pool's selector must never be used
		b = userNode(name).Label("type", "virtual-kubelet")
	}
	b = b.Label(v1.LabelTopologyZone, fmt.Sprintf("zone-%d", w.r.IntN(3))).Label("disk", []string{"ssd", "hdd"}[w.r.IntN(2)])
	node := b.Obj()
	w.randomTaints(node)
	w.nodes = append(w.nodes, node)
	w.sched.Cache.AddNode(w.logger, node)
}

func (w *world) randomTaints(node *v1.Node) {
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key != "virtual-kubelet.io/provider" })
	node.Spec.Unschedulable = w.r.IntN(15) == 0
	if w.r.IntN(8) == 0 {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: "dedicated", Value: "special", Effect: v1.TaintEffectNoSchedule})
	}
}

func (w *world) randomPod() *v1.Pod {
	w.serial++
	if w.copies > 0 && w.like != nil {
		w.copies--
		p := w.like.DeepCopy()
		p.Name = fmt.Sprintf("pod-%d", w.serial)
		p.UID = types.UID(p.Name)
		return p
	}
	w.like = w.newPod()
	return w.like
}

func (w *world) newPod() *v1.Pod {
	if w.alike {
		return w.plainPod()
	}
	p := st.MakePod().Name(fmt.Sprintf("pod-%d", w.serial)).UID(fmt.Sprintf("pod-%d", w.serial)).Namespace("default").SchedulerName(ourProfile).
		Label("app", fmt.Sprintf("app-%d", w.r.IntN(4))).Priority(int32(w.r.IntN(3))).
		Req(map[v1.ResourceName]string{"cpu": fmt.Sprintf("%dm", 100+w.r.IntN(3500)), "memory": fmt.Sprintf("%dMi", 64+w.r.IntN(4000))})
	switch w.r.IntN(12) {
	case 0:
		p = p.NodeSelector(map[string]string{"disk": "ssd"})
	case 1:
		p = p.NodeSelector(map[string]string{"agentpool": "systempool"})
	case 2:
		p = p.NodeSelector(map[string]string{"disk": "none"})
	case 3:
		p = p.NodeAffinityIn("agentpool", []string{"userpool"}, st.NodeSelectorTypeMatchExpressions)
	case 4:
		p = p.PodAntiAffinityExists("app", v1.LabelHostname, st.PodAntiAffinityWithRequiredReq)
	case 5:
		p = p.SpreadConstraint(2, v1.LabelTopologyZone, v1.DoNotSchedule, st.MakeLabelSelector().Exists("app").Obj(), nil, nil, nil, nil)
	case 6:
		p = p.HostPort(int32(8000 + w.r.IntN(3)))
	case 7:
		p = p.PodAffinityExists("app", v1.LabelTopologyZone, st.PodAffinityWithRequiredReq)
	case 8:
		p = p.PVC(fmt.Sprintf("disk-%d", w.r.IntN(3)))
	case 9: // some that fill a node each, and are alike: the scheduler may reuse what it found for the one before
		w.copies = 4
		p = p.Req(map[v1.ResourceName]string{"cpu": "2500m", "memory": "1Gi"})
	}
	if w.r.IntN(4) == 0 {
		p = p.Toleration("dedicated")
	}
	return w.ordered(p).Obj()
}

// ordered gives some pods an order: system before user, one without burst pools, or one that the configuration does not
// have.
func (w *world) ordered(p *st.PodWrapper) *st.PodWrapper {
	if name := []string{"system-first", "vms", "typo", "", "", "", ""}[w.r.IntN(7)]; name != "" {
		return p.Annotation(pool.OrderAnnotation, name)
	}
	return p
}

// plainPod is one of few kinds, which differ in one thing each that Filters go by.
func (w *world) plainPod() *v1.Pod {
	name := fmt.Sprintf("pod-%d", w.serial)
	p := st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(ourProfile).Priority(int32(w.r.IntN(20) / 19)).
		Req(map[v1.ResourceName]string{"cpu": []string{"500m", "1800m", "3500m"}[w.r.IntN(3)], "memory": []string{"1Gi", "7Gi"}[w.r.IntN(2)]})
	switch w.r.IntN(8) {
	case 0:
		p = p.NodeSelector(map[string]string{"disk": "ssd"})
	case 1:
		p = p.NodeSelector(map[string]string{"disk": "hdd"})
	case 2:
		p = p.NodeAffinityIn("agentpool", []string{"userpool"}, st.NodeSelectorTypeMatchExpressions)
	case 3:
		p = p.NodeAffinityIn("agentpool", []string{"systempool"}, st.NodeSelectorTypeMatchExpressions)
	case 4:
		p = p.Toleration("dedicated")
	case 5:
		p = p.HostPort(8000)
	case 6:
		p = p.PVC(fmt.Sprintf("disk-%d", w.r.IntN(3)))
	}
	return w.ordered(p).Obj()
}

// step changes the cluster a little and schedules a pod.
func (w *world) step() {
	switch n := w.r.IntN(40); {
	case n == 0 && len(w.nodes) > w.size/2:
		i := w.r.IntN(len(w.nodes))
		must.NoError(w, w.sched.Cache.RemoveNode(w.logger, w.nodes[i]))
		w.nodes = slices.Delete(w.nodes, i, i+1)
	case n == 1 && len(w.nodes) < w.size*3/2:
		w.addNode()
	case n < 4:
		w.changeNode()
	case n == 4:
		w.setGate([]string{open, open, closed, stale}[w.r.IntN(4)])
	case n == 5 && (!w.alike || len(w.nominees) > 0 || w.r.IntN(10) == 0):
		w.nominate()
	case n < 8 && len(w.ending) > 0:
		i := w.r.IntN(len(w.ending))
		w.remove(w.ending[i])
		w.ending = slices.Delete(w.ending, i, i+1)
	}
	if w.gate == stale {
		w.setGate(stale) // as a look that is made now; that of an old one does not last
	}
	// The cluster fills, is full for a while, and empties again.
	wave := w.size * 4
	remove := 0
	if w.serial%(2*wave) > wave {
		remove = w.r.IntN(4)
	} else if w.r.IntN(20) == 0 {
		remove = 1
	}
	for ; remove > 0 && len(w.names) > 0; remove-- {
		i := w.r.IntN(len(w.names))
		w.remove(w.names[i])
		w.names = slices.Delete(w.names, i, i+1)
	}
	var pod *v1.Pod
	preemptor := len(w.preemptors) > 0 && w.r.IntN(2) == 0
	if preemptor {
		pod, w.preemptors = w.preemptors[0], w.preemptors[1:]
		w.list(pod)
	} else if pod = w.randomPod(); w.r.IntN(30) == 0 && len(w.nodes) > 0 && !w.alike {
		// Nominated in an earlier cycle, perhaps to a node of a worse pool than has room now.
		pod.Status.NominatedNodeName = w.nodes[w.r.IntN(len(w.nodes))].Name
		w.list(pod)
	}
	want := w.feasible(pod, w.gate == open)
	if w.awaitsVictims(pod) {
		w.early++
		if maps.DeleteFunc(want, func(_ string, rank int) bool { return rank == 3 }); w.gate == open && w.hasVirtual(pod) {
			w.patient++
		}
	}
	state := framework.NewCycleState()
	node, err := w.scheduleIn(state, pod)
	w.check(pod, want, node, err)
	var fit *framework.FitError
	if err == nil {
		w.checkCounted(state, node)
	} else if errors.As(err, &fit) {
		w.checkRepeated(state, pod, fit)
	}
	w.unlist(pod)
	switch {
	case err == nil && preemptor:
		w.preempted++
	case err == nil && len(pod.Spec.Volumes) > 0:
		w.volumes++
	case preemptor && w.awaitsVictims(pod):
		w.park(pod)
		w.preemptors = append(w.preemptors, pod)
	case pod.Status.NominatedNodeName != "": // somebody else took the room
		w.sched.SchedulingQueue.DeleteNominatedPodIfExists(pod)
	case errors.As(err, &fit) && *pod.Spec.Priority > 0 && w.r.IntN(3) == 0:
		w.preempt(state, pod, fit)
	case fit != nil:
		if n, ok := w.sched.Profiles[ourProfile].(*narrowing); ok {
			n.pl.diagnoses.remember(mustCycle(w, state), fit.Diagnosis.NodeToStatus) // as PostFilter would
		}
		if w.r.IntN(2) == 0 { // others that are alike
			w.like, w.copies = pod, 1+w.r.IntN(4)
		}
	}
}

func mustCycle(t testing.TB, state fwk.CycleState) *cycle {
	c := must.Get(readCycle(state))(t)
	return c
}

// checkRepeated: a pod that was not looked at, because others of its kind had failed, fails as it would have if it had
// been.
func (w *world) checkRepeated(state fwk.CycleState, pod *v1.Pod, fit *framework.FitError) {
	c, err := readCycle(state)
	if err != nil || !c.fromCache {
		return
	}
	w.repeated++
	known := w.plugin.diagnoses
	w.plugin.diagnoses = diagnosisCache{}
	defer func() { w.plugin.diagnoses = known }()
	again := framework.NewCycleState()
	node, err := compat.SchedulePod(w.ctx, w.sched, w.sched.Profiles[ourProfile], again, pod)
	var plain *framework.FitError
	if !errors.As(err, &plain) {
		w.Fatalf("%s was said to find no room, and finds %v, %v", pod.Name, node, err)
	}
	if len(w.nominees)+len(w.preemptors) == 0 && pod.Status.NominatedNodeName == "" {
		w.compared++
	} else { // they take room of nodes that had none before, too, and may add reasons
		plain.Diagnosis.PreFilterMsg, fit.Diagnosis.PreFilterMsg = "-", "-"
	}
	if a, b := fit.Error(), plain.Error(); a != b {
		w.Fatalf("%s failed by %q, and by %q when it was looked at", pod.Name, a, b)
	}
	if !maps.Equal(fit.Diagnosis.UnschedulablePlugins, plain.Diagnosis.UnschedulablePlugins) || len(fit.Diagnosis.PendingPlugins)+len(plain.Diagnosis.PendingPlugins) > 0 {
		w.Fatalf("%s failed by %v, and by %v when it was looked at", pod.Name, fit.Diagnosis.UnschedulablePlugins, plain.Diagnosis.UnschedulablePlugins)
	}
	d := mustCycle(w, again)
	for name, flags := range map[string][2]bool{
		"gated": {c.flags.gateClosed.Load(), d.flags.gateClosed.Load()}, "passing": {c.flags.passing.Load(), d.flags.passing.Load()},
		"awaitsGateTaint": {c.flags.awaitsGateTaint.Load(), d.flags.awaitsGateTaint.Load()},
	} {
		if flags[0] != flags[1] {
			w.Fatalf("%s: %s is %t, and %t when it was looked at", pod.Name, name, flags[0], flags[1])
		}
	}
}

// awaitsVictims reports whether pods are ending that leave room for the pod, on a node that is kept for it and better
// than a virtual one.
func (w *world) awaitsVictims(pod *v1.Pod) bool {
	i := slices.IndexFunc(w.nodes, func(n *v1.Node) bool { return n.Name == pod.Status.NominatedNodeName })
	return i >= 0 && naiveRank(w.nodes[i]) >= 0 && naiveRank(w.nodes[i]) < 3 && len(w.endingFor(pod)) > 0
}

// endingFor is what is ending on the node that is kept for the pod and is less important.
func (w *world) endingFor(pod *v1.Pod) []string {
	var names []string
	for _, name := range w.ending {
		if victim := w.bound[name]; victim.Spec.NodeName == pod.Status.NominatedNodeName && *victim.Spec.Priority < *pod.Spec.Priority {
			names = append(names, name)
		}
	}
	return names
}

// hasVirtual reports whether a virtual node has room for the pod, whatever the gate says.
func (w *world) hasVirtual(pod *v1.Pod) bool {
	for _, rank := range w.feasible(pod, true) {
		if rank == 3 {
			return true
		}
	}
	return false
}

// checkCounted: what the metric of violations goes by tells the node that the pod is on from one that would have been
// wrong.
func (w *world) checkCounted(state fwk.CycleState, placed string) {
	c := must.Get(readCycle(state))(w)
	other := w.nodes[w.r.IntN(len(w.nodes))]
	i := slices.IndexFunc(w.nodes, func(n *v1.Node) bool { return n.Name == placed })
	if w.plugin.violates(c, w.nodes[i]) {
		w.Fatalf("a pod on %s would count as a violation", placed)
	}
	if rank, _ := w.plugin.pools.RankOf(other); other.Name != placed && c.narrowed && c.order.PlaceOf(rank) > c.worst && !w.plugin.violates(c, other) {
		w.Fatalf("a pod on %s of rank %d would not count as a violation, with room in rank %d", other.Name, rank, c.worst)
	}
}

// preempt runs the PostFilter plugins for a pod that found no place, DefaultPreemption among them. If that finds one,
// its victims leave the node, at once or while later pods are tried, and the pod, for which the node keeps the room, is
// tried again soon. While the gate is closed for a moment, nobody is preempted for a pod that has a place when it
// opens.
func (w *world) preempt(state fwk.CycleState, pod *v1.Pod, fit *framework.FitError) {
	spare := w.gate == stale && w.hasVirtual(pod)
	// Preemption asks the lister whether its last victim is there still.
	listed := append(slices.Collect(maps.Values(w.bound)), pod)
	w.list(listed...)
	defer w.unlist(listed...)
	result, status := w.sched.Profiles[ourProfile].RunPostFilterPlugins(w.ctx, state, pod, fit.Diagnosis.NodeToStatus)
	if status.Code() == fwk.Error {
		w.Fatal(status.AsError())
	}
	victims := w.victimsOf(pod)
	if !status.IsSuccess() || result == nil || result.NominatedNodeName == "" {
		if len(victims) > 0 {
			w.Fatalf("%s: %v were preempted for nothing", pod.Name, victims)
		}
		if spare {
			w.kept++
		}
		return
	}
	w.preemptions++
	again := pod.DeepCopy()
	again.Status.NominatedNodeName = result.NominatedNodeName
	late := w.endingFor(again)
	// In-tree spreading counts no pods that are ending, and preemption takes them off its count all the same.
	misjudged := len(late) > 0 && len(pod.Spec.TopologySpreadConstraints) > 0
	if len(victims)+len(late) == 0 {
		w.Fatalf("%s is nominated for %s without a victim", pod.Name, result.NominatedNodeName)
	}
	if spare {
		w.Errorf("%s preempted %v while the gate is closed for a moment", pod.Name, victims)
	}
	for _, name := range victims {
		if victim := w.bound[name]; *victim.Spec.Priority >= *pod.Spec.Priority || victim.Spec.NodeName != result.NominatedNodeName {
			w.Errorf("%s preempted %s of priority %d on %s for %s", pod.Name, name, *victim.Spec.Priority, victim.Spec.NodeName, result.NominatedNodeName)
		}
		w.names = slices.DeleteFunc(w.names, func(n string) bool { return n == name })
	}
	if w.r.IntN(2) == 0 {
		w.ending = append(w.ending, victims...)
		late = append(late, victims...)
		victims = nil
	}
	for _, name := range victims {
		w.remove(name)
	}
	w.keepRoom(again, late, misjudged)
	w.preemptors = append(w.preemptors, again)
}

// victimsOf waits until preemption for the pod is through, and returns whom it hit. The scheduler would not try the pod
// before.
func (w *world) victimsOf(pod *v1.Pod) []string {
	for _, plugin := range w.sched.Profiles[ourProfile].PreEnqueuePlugins() {
		for plugin.Name() == names.DefaultPreemption && !plugin.PreEnqueue(w.ctx, pod).IsSuccess() {
			time.Sleep(10 * time.Microsecond)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	victims := w.victims
	w.victims = nil
	return victims
}

// keepRoom has the node keep the room for the pod that it is nominated for. It must be feasible without those that are
// ending, unless in-tree preemption may have misjudged it.
func (w *world) keepRoom(pod *v1.Pod, ending []string, misjudged bool) {
	w.park(pod)
	left := map[string]*v1.Pod{}
	for _, name := range ending {
		left[name] = w.bound[name].DeepCopy()
		left[name].DeletionTimestamp = &metav1.Time{Time: time.Now().Add(time.Hour)}
		w.remove(name)
	}
	if _, feasible := w.feasible(pod, w.gate == open)[pod.Status.NominatedNodeName]; !feasible && !misjudged {
		w.wronglyPlaced++
		w.Logf("%s preempted others on %s, which is not feasible without them, of which %d were ending: %v (the gate is %s)", pod.Name, pod.Status.NominatedNodeName,
			len(ending), w.rejection(pod), w.gate)
	}
	for name, victim := range left {
		w.bound[name] = victim
		must.NoError(w, w.sched.Cache.AddPod(w.logger, victim))
	}
}

// rejection is why in-tree filters reject the pod on the node that it is nominated to.
func (w *world) rejection(pod *v1.Pod) *fwk.Status {
	oracle, state := w.sched.Profiles[oracleProfile], framework.NewCycleState()
	pod = pod.DeepCopy()
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: "virtual-kubelet.io/provider", Operator: v1.TolerationOpExists}) // if it is a virtual node
	info, err := oracle.SnapshotSharedLister().NodeInfos().Get(pod.Status.NominatedNodeName)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if _, status, _ := oracle.RunPreFilterPlugins(w.ctx, state, pod); !status.IsSuccess() {
		return status
	}
	return oracle.RunFilterPluginsWithNominatedPods(w.ctx, state, pod, info)
}

func (w *world) changeNode() {
	i := w.r.IntN(len(w.nodes))
	old := w.nodes[i]
	node := old.DeepCopy()
	if w.r.IntN(3) == 0 && node.Labels["type"] == "" {
		mode := []string{"user", "system", ""}[w.r.IntN(3)]
		if delete(node.Labels, "kubernetes.azure.com/mode"); mode != "" {
			node.Labels["kubernetes.azure.com/mode"] = mode
		}
	} else {
		w.randomTaints(node)
	}
	w.nodes[i] = node
	w.sched.Cache.UpdateNode(w.logger, old, node)
}

// nominate puts a pod of high priority, or takes one away, for which a node keeps room.
func (w *world) nominate() {
	if len(w.nominees) > 3 || w.alike && len(w.nominees) > 0 {
		compat.Dequeue(w.logger, w.sched, w.nominees[0])
		w.nominees = w.nominees[1:]
		return
	}
	w.serial++
	name := fmt.Sprintf("nominee-%d", w.serial)
	pod := st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(ourProfile).Priority(10).NominatedNodeName(w.nodes[w.r.IntN(len(w.nodes))].Name).
		Req(map[v1.ResourceName]string{"cpu": "3", "memory": "1Gi"}).Obj()
	w.park(pod)
	w.nominees = append(w.nominees, pod)
}

// park has the queue keep a pod that found no place, and the node that it is nominated for keep the room: of a pod that
// is in no queue, the node would not know how much.
func (w *world) park(pod *v1.Pod) {
	w.list(pod) // or it would not be nominated
	defer w.unlist(pod)
	info := w.pop(pod)
	w.wait(info)
	w.sched.SchedulingQueue.AddNominatedPod(w.logger, info.PodInfo, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: pod.Status.NominatedNodeName})
}

// list has the lister that the scheduler's queue and preemption ask know the pods.
func (w *world) list(pods ...*v1.Pod) {
	for _, p := range pods {
		must.NoError(w, w.shared.Core().V1().Pods().Informer().GetStore().Add(p))
	}
}

func (w *world) unlist(pods ...*v1.Pod) {
	for _, p := range pods {
		must.NoError(w, w.shared.Core().V1().Pods().Informer().GetStore().Delete(p))
	}
}

// feasible returns the ranks of the nodes that are feasible for the pod, by name. It is brute force, and knows nothing
// of how the plugin searches. Nodes of the burst pool are if the gate is open.
func (w *world) feasible(pod *v1.Pod, open bool) map[string]int {
	oracle := w.sched.Profiles[oracleProfile]
	if err := w.sched.Cache.UpdateSnapshot(w.logger, oracle.SnapshotSharedLister().(*backendcache.Snapshot)); err != nil { // as a cycle begins
		w.Fatal(err)
	}
	lenient := pod.DeepCopy()
	lenient.Spec.Tolerations = append(lenient.Spec.Tolerations, v1.Toleration{Key: "virtual-kubelet.io/provider", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule})

	infos := must.Get(oracle.SnapshotSharedLister().NodeInfos().List())(w)
	result := map[string]int{}
	for _, asPod := range []*v1.Pod{pod, lenient} {
		state := framework.NewCycleState()
		pre, status, _ := oracle.RunPreFilterPlugins(w.ctx, state, asPod)
		if !status.IsSuccess() {
			continue
		}
		for _, info := range infos {
			node := info.Node()
			if !pre.AllNodes() && !pre.NodeNames.Has(node.Name) {
				continue
			}
			rank := naiveRank(node)
			if rank < 0 || (rank == 3 && (!open || cannotBurst(pod))) || (rank == 3) != (asPod == lenient) {
				continue
			}
			if oracle.RunFilterPluginsWithNominatedPods(w.ctx, state, asPod, info).IsSuccess() {
				result[node.Name] = naivePlace(pod, rank)
			}
		}
	}
	return result
}

// cannotBurst reports whether the pod uses one of the two things of those random pods that a virtual kubelet cannot
// run: a disk and a host port. Nor can a pod with an order without the virtual node.
func cannotBurst(pod *v1.Pod) bool {
	order := pod.Annotations[pool.OrderAnnotation]
	return order == "vms" || order == "typo" || len(pod.Spec.Volumes) > 0 || slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p v1.ContainerPort) bool { return p.HostPort != 0 })
	})
}

// naivePlace states the pod's order in its own words.
func naivePlace(pod *v1.Pod, rank int) int {
	if pod.Annotations[pool.OrderAnnotation] == "system-first" && rank < 2 {
		return 1 - rank
	}
	return rank
}

// naiveRank states the order of the AKS configuration in its own words.
func naiveRank(node *v1.Node) int {
	mode, virtual := node.Labels["kubernetes.azure.com/mode"], node.Labels["type"] == "virtual-kubelet"
	switch {
	case virtual && mode == "":
		return 3
	case virtual:
		return -1
	case mode == "user":
		return 0
	case mode == "system":
		return 1
	default:
		return 2
	}
}

func (w *world) check(pod *v1.Pod, want map[string]int, node string, err error) {
	best := -1
	for _, rank := range want {
		if best < 0 || rank < best {
			best = rank
		}
	}
	if len(w.nominees) > 0 {
		w.nominated++
	}
	if err != nil {
		w.unschedulable++
		var fit *framework.FitError
		if !errors.As(err, &fit) {
			w.Fatalf("%s: %v", pod.Name, err)
		}
		if best >= 0 {
			w.wronglyUnschedulable++
			w.Logf("%s: %v, although a node of rank %d is feasible (the gate is %s, it awaits victims: %v)", pod.Name, err, best, w.gate, w.awaitsVictims(pod))
		}
		return
	}
	w.placed++
	w.names = append(w.names, pod.Name)
	switch rank, ok := want[node]; {
	case !ok:
		w.wronglyPlaced++
		w.Logf("%s is on %s, which is not feasible (the gate is %s, it awaits victims: %v, nominated for %q, ranks of what is feasible %v)",
			pod.Name, node, w.gate, w.awaitsVictims(pod), pod.Status.NominatedNodeName, want)
	case rank != best:
		w.wrong++
		w.Logf("%s is on %s of rank %d, although a node of rank %d is feasible", pod.Name, node, rank, best)
	default:
		w.byRank[rank]++
	}
}
