package poolpriority

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// TestNobodyIsKilledForAMoment: where the gate is closed for a moment only, a pod of high priority preempts nobody on
// the VMs.
func TestNobodyIsKilledForAMoment(t *testing.T) {
	early := func(p *v1.Pod) {
		p.OwnerReferences, p.CreationTimestamp = owner("ReplicaSet", "unknown"), metav1.Now()
	}
	for _, tc := range []struct {
		name    string
		pod     func(*v1.Pod)
		states  []nodegroups.State
		stale   bool // the scheduler has not seen all nodes
		want    gate.Wait
		victims int
	}{
		{name: "its ReplicaSet is not known yet", pod: early, states: []nodegroups.State{nodegroups.Full, nodegroups.Full}, want: gate.Wait{Reason: gate.ReasonReplicaSetUnknown}},
		{name: "not all nodes have been seen", states: []nodegroups.State{nodegroups.Full, nodegroups.Full}, stale: true, want: gate.Wait{Reason: gate.ReasonSnapshotStale}},
		{name: "a pool can grow: that may take minutes", states: []nodegroups.State{nodegroups.CanGrow, nodegroups.Full}, want: gate.Wait{Reason: gate.ReasonCanGrow}, victims: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			victims := h.countVictims()
			h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}), virtualNode("virtual"))
			h.place(pod("low").Priority(0).Obj(), "user-1")
			h.setCapacity(tc.states...)
			if tc.stale {
				view := &nodegroups.View{Pools: make([]nodegroups.Pool, h.plugin.pools.Len()), Built: time.Now()}
				for i, state := range tc.states {
					view.Pools[i] = inState(state)
				}
				view.Pools[0].Nodes = 2
				h.plugin.gatekeeper.Assume(view)
			}
			p := pod("high").Priority(10).Obj()
			if tc.pod != nil {
				tc.pod(p)
			}
			err := h.fail(p)
			if !strings.Contains(err.Error(), tc.want.Reason.Sentence) {
				t.Errorf("the pod was told %v, want %q", err, tc.want.Reason.Sentence)
			}
			if got := victims(); len(got) != tc.victims {
				t.Errorf("%v were preempted, want %d", got, tc.victims)
			}
		})
	}
}

// TestNoPreemptionAfterTheLease: a scheduler whose lease has run out preempts nobody.
func TestNoPreemptionAfterTheLease(t *testing.T) {
	for _, tc := range []struct {
		name    string
		left    time.Duration // of the lease
		victims int
	}{{"leads", time.Hour, 1}, {"does no longer", -time.Second, 0}} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			victims := h.countVictims()
			h.plugin.leadership = lease.NewLeadership()
			h.plugin.leadership.Extend(time.Now().Add(tc.left))
			h.addNodes(userNode("user-1").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}))
			h.place(pod("low").Priority(0).Obj(), "user-1")
			h.setCapacity(nodegroups.CanGrow, nodegroups.CanGrow)
			_ = h.fail(pod("high").Priority(10).Obj())
			if got := victims(); len(got) != tc.victims {
				t.Errorf("%v were preempted, want %d", got, tc.victims)
			}
		})
	}
}

// TestVictimsThatEnd: a pod does not burst while those that it preempted are ending, and does when they do not.
func TestVictimsThatEnd(t *testing.T) {
	for _, tc := range []struct {
		name      string
		within    time.Duration // of which the victim ends
		grace     int64         // seconds
		priority  int32         // the victim's
		nominated string
		want      string // "" is held
	}{
		{"a victim that ends", 20 * time.Second, 30, 0, "user-1", ""},
		{"one that began to end 50 s ago", 10 * time.Minute, 650, 0, "user-1", ""},
		{"one that began to end 63 s ago", 10 * time.Minute, 663, 0, "user-1", ""},
		{"one that began to end 70 s ago", 10 * time.Minute, 670, 0, "user-1", "virtual"},
		{"one that should have ended a minute ago", -time.Minute, 30, 0, "user-1", "virtual"},
		{"an ending pod that is nobody's victim", 20 * time.Second, 30, 100, "user-1", "virtual"},
		{"one on another node", 20 * time.Second, 30, 0, "user-2", "virtual"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			small := map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}
			h.addNodes(userNode("user-1").Capacity(small), userNode("user-2").Capacity(small), virtualNode("virtual"))
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			h.place(pod("low").Priority(tc.priority).Obj(), "user-1")
			h.place(pod("other").Priority(100).Obj(), "user-2")
			ending := h.bound["low"].DeepCopy()
			ending.DeletionTimestamp, ending.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(time.Now().Add(tc.within))), &tc.grace
			must.NoError(t, h.sched.Cache.UpdatePod(h.logger, h.bound["low"], ending))
			p := pod("high").Priority(10).Obj()
			p.Status.NominatedNodeName = tc.nominated
			if err := h.shared.Core().V1().Pods().Informer().GetIndexer().Add(p); err != nil { // or the queue does not nominate it
				t.Fatal(err)
			}
			node, err := h.schedule(p)
			if node != tc.want || tc.want == "" && !strings.Contains(err.Error(), gate.ReasonVictimsTerminating.Sentence) {
				t.Errorf("the pod is on %q (%v), want %q", node, err, tc.want)
			}
		})
	}
}

// TestPodsOfNodesAreNotScanned: a node may have thousands of pods, and a pod that gets a VM does not wait for victims.
func TestPodsOfNodesAreNotScanned(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("user-1"), virtualNode("virtual"))
	h.setCapacity(nodegroups.Full, nodegroups.Full) // the gate is open
	if node, err := h.schedule(pod("pod").Obj()); node != "user-1" {
		t.Fatalf("the pod is on %q (%v)", node, err)
	}
	for _, e := range h.plugin.index.entries {
		if e.scanned {
			t.Errorf("the cycle looked at all pods of %s", e.node.Name)
		}
	}
}

// moody is a Filter that lets a node pass when it is asked about it for a pod an odd number of times: a cycle's proof
// passes, and the cycle itself does not.
type moody struct {
	mu    sync.Mutex
	asked map[string]int
}

func (m *moody) Name() string { return "Moody" }

func (m *moody) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := pod.Name + "/" + node.Node().Name
	m.asked[key]++
	if m.asked[key]%2 == 0 {
		return fwk.NewStatus(fwk.Unschedulable, "in a bad mood")
	}
	return nil
}

// TestMoodyFilter: a Filter that answers differently the second time does not keep the scheduler busy with one pod:
// after some tries the cycle is not narrowed, and the pod gets a node.
func TestMoodyFilter(t *testing.T) {
	cfg := aks(t)
	cfg.Profiles[0].Plugins.Filter.Enabled = append(cfg.Profiles[0].Plugins.Filter.Enabled, schedconfig.Plugin{Name: "Moody"})
	h, err := tryHarnessWith(t, cfg, frameworkruntime.Registry{
		"Moody": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return &moody{asked: map[string]int{}}, nil
		},
	})
	must.NoError(t, err)
	h.addNodes(userNode("user-1"), systemNode("system-1"), virtualNode("virtual"))
	h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
	p := pod("p").Obj()
	for i := range triesAtOnce + 1 {
		if err := h.fail(p); err == nil {
			t.Fatalf("try %d: the pod got a node, although the filter rejects it when asked again", i)
		}
	}
	state := framework.NewCycleState()
	node, err := h.scheduleIn(state, p)
	if err != nil {
		t.Fatalf("the cycle that is not narrowed: %v", err)
	}
	if c, _ := readCycle(state); c.narrowed || !c.widened {
		t.Errorf("the cycle was narrowed: %+v", c)
	}
	if node == "virtual" {
		t.Error("the pod is on the virtual node while a pool can grow")
	}
	h.plugin.retries.Remove(p.UID)
	if h.plugin.retries.exhausted(p.UID) {
		t.Error("the next cycle would not be narrowed either")
	}
}

// countVictims returns what tells the pods that have been deleted.
func (h *harness) countVictims() func() []string {
	var mu sync.Mutex
	var victims []string
	h.victims(func(pod string) {
		mu.Lock()
		defer mu.Unlock()
		victims = append(victims, pod)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(victims)
	}
}

// fail runs a scheduling cycle that finds no node for the pod, with its PostFilters, and returns what the pod is told.
func (h *harness) fail(p *v1.Pod) error {
	h.Helper()
	for _, known := range append([]*v1.Pod{p}, boundPods(h)...) { // preemption looks at what listers know
		must.NoError(h, h.shared.Core().V1().Pods().Informer().GetIndexer().Add(known))
	}
	state := framework.NewCycleState()
	node, err := h.scheduleIn(state, p)
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		h.Fatalf("the pod is on %q (%v)", node, err)
	}
	result, status := h.sched.Profiles[ourProfile].RunPostFilterPlugins(h.ctx, state, p, fit.Diagnosis.NodeToStatus)
	if status.Code() == fwk.Error {
		h.Fatal(status.AsError())
	}
	if result != nil && result.NominatedNodeName != "" { // its victims are deleted beside the cycle
		for deadline := time.Now().Add(10 * time.Second); len(h.deletions()) == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	return err
}

func boundPods(h *harness) []*v1.Pod {
	var pods []*v1.Pod
	for _, p := range h.bound {
		pods = append(pods, p)
	}
	return pods
}

func (h *harness) deletions() []clienttesting.Action {
	return slices.DeleteFunc(h.client.Actions(), func(a clienttesting.Action) bool { return !a.Matches("delete", "pods") })
}
