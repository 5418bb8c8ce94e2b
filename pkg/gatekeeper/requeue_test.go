package gatekeeper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// TestOpeningGateRequeuesWhatTheBudgetHasRoomFor: 10,000 pods wait for a burst pool with a budget of 100 pods. Each
// time the gate opens, 100 pods are bound, and at most a tenth more are tried. The other pods are BudgetSpent at once.
// If a requeued pod does not fit the burst node, the next pod gets its budget.
func TestOpeningGateRequeuesWhatTheBudgetHasRoomFor(t *testing.T) {
	const crowd, budget = 10000, 100
	for _, tc := range []struct {
		name       string
		mismatches int // pods that fit no burst node, although the gate is open
		maxCycles  int // each time the gate opens
	}{
		{"all fit", 0, budget + budget/10},
		{"the first 500 fit no node", 500, 500 + 3*budget},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) {
				args.Pools[2].Burst.Limits, args.Pools[2].Burst.Platform = &configv1.BurstLimits{Pods: budget}, configv1.PlatformOther
			}, burstNode("virtual"))
			w.config.Informers.Start(w.Context().Done())
			w.config.Informers.WaitForCacheSync(w.Context().Done())
			view := func(state nodegroups.State) *nodegroups.View {
				view := &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}
				for i := range 2 {
					view.Pools[i] = nodegroups.Pool{State: state, Groups: []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{State: state}}}}
				}
				return view
			}
			w.Assume(view(nodegroups.CanGrow))
			pods := w.config.Informers.Core().V1().Pods().Informer().GetIndexer()
			hold := func(p *v1.Pod, snapshot Snapshot) {
				d := w.Decide(p, snapshot, gate.Wait{})
				w.Gatekeeper.Failed(p, true)
				w.held.Add(p, w.autoscalerKey(p), &d, nil, w.clock.Now())
			}
			for i := range crowd {
				p := withCondition(pod(fmt.Sprint("p", i)), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now().Add(time.Duration(i)*time.Millisecond))
				p.Spec.Priority = ptr.To(int32(i % 3))
				must.NoError(t, pods.Add(p))
				hold(p, Snapshot{})
			}
			for opening := range 2 {
				w.Assume(view(nodegroups.Full))
				w.reconsider(w.Context(), false)
				if by, _ := w.held.ByReason(); by["BudgetSpent"] < w.held.Count()-budget-budget/10 {
					t.Errorf("opening %d: %v of %d pods", opening, by, w.held.Count())
				}
				var bound []*v1.Pod
				cycles, mismatches, lowest := 0, 0, int32(2)
				for idle := 0; idle < 3; idle++ {
					w.clock.Step(2 * time.Millisecond) // others get their turn between batches
					w.SendBatch(klog.Background())
					w.mu.Lock()
					names := w.activated
					w.activated = nil
					w.mu.Unlock()
					for _, name := range names {
						idle, cycles = 0, cycles+1
						p := must.Get(w.pods.Pods("default").Get(strings.TrimPrefix(name, "default/")))(t)
						snapshot := Snapshot{Burst: []aci.Use{{}, {}, {Pods: len(bound)}}}
						switch d := w.Decide(p, snapshot, gate.Wait{}); {
						case !d.Opens():
							hold(p, snapshot)
						case mismatches < tc.mismatches:
							mismatches++
							w.Gatekeeper.Failed(p, true)
						default:
							p = p.DeepCopy()
							p.Spec.NodeName = "virtual"
							bound, lowest = append(bound, p), min(lowest, *p.Spec.Priority)
							w.see(p)
							w.forget(p.UID)
						}
					}
					w.reconsider(w.Context(), true)
				}
				if len(bound) != budget || cycles > tc.maxCycles || lowest < 2 {
					t.Errorf("opening %d: %d pods are bound in %d cycles; want %d in at most %d; the lowest priority is %d", opening, len(bound), cycles, budget, tc.maxCycles, lowest)
				}
				w.Assume(view(nodegroups.CanGrow))
				w.reconsider(w.Context(), false)
				if by, _ := w.held.ByReason(); by["BudgetSpent"] > 0 {
					t.Errorf("closing %d: %v", opening, by)
				}
				for _, p := range bound {
					w.usage.Gone(p.UID)
				}
			}
		})
	}
}

// TestRest: after each kind of sync, the loop rests for nine times the duration of the last sync of this kind.
func TestRest(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct{ took, least, want time.Duration }{
		{0, settleTime, settleTime}, {20 * time.Millisecond, settleTime, 180 * time.Millisecond}, {time.Millisecond, 0, 9 * time.Millisecond}, {time.Second, 0, maxRest},
	} {
		began := w.clock.Now()
		w.loop.last[true] = synced{began, tc.took}
		if w.rest(true, tc.least, w.earlier); w.clock.Since(began) != tc.want {
			t.Errorf("after a sync that took %v, the loop rests for %v, want %v", tc.took, w.clock.Since(began), tc.want)
		}
	}
}

// TestPodLevelResize: a pod that is resized as a whole frees capacity once the kubelet has resized it. Before 1.36,
// kube-scheduler counts the new requests as soon as they are in the pod's specification.
func TestPodLevelResize(t *testing.T) {
	of := func(asked, has string) *v1.Pod {
		list := func(cpu string) v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)} }
		p := pod("p")
		p.Spec.NodeName, p.Spec.Resources = "vm", &v1.ResourceRequirements{Requests: list(asked)}
		p.Status.AllocatedResources, p.Status.Resources = list(has), &v1.ResourceRequirements{Requests: list(has)}
		return p
	}
	asked, done := freesCapacity(of("2", "2"), of("1", "2")), freesCapacity(of("1", "2"), of("1", "1"))
	if asked == compat.PodLevelResize || done != compat.PodLevelResize {
		t.Errorf("capacity becomes free when the resize is asked for: %v, when it is done: %v", asked, done)
	}
}
