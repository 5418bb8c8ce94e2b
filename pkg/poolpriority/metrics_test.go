package poolpriority

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// withNodes gives the plugin's lister a node of each pool, one of none, and a virtual one in no burst pool.
func (h *harness) withNodes() {
	h.Helper()
	for _, node := range []*v1.Node{
		userNode("user").Obj(), systemNode("system").Obj(), virtualNode("virtual").Obj(), userNode("unlisted").Label("kubernetes.azure.com/mode", "other").Obj(),
	} {
		must.NoError(h, h.shared.Core().V1().Nodes().Informer().GetStore().Add(node))
	}
}

func TestPlacementOf(t *testing.T) {
	open, closed := gate.Verdict{Open: true, Reason: nodegroups.Reason{Code: "Open"}}, gate.Verdict{Reason: gate.ReasonCanGrow}
	observed := gate.Verdict{Open: true, Observed: true, Reason: gate.ReasonCanGrow}
	proven := func(rank pool.Rank, names ...string) *cycle {
		return &cycle{nodes: []fwk.NodeInfo{}, worst: rank, narrowed: true, found: sets.New(names...)}
	}
	unproven := &cycle{nodes: []fwk.NodeInfo{}, worst: anyRank}
	const user, system, unlisted = 0, 1, 2
	for _, tc := range []struct {
		name  string
		cycle *cycle
		aci   gate.Verdict
		node  string
		held  bool
		want  placement
	}{
		{"on the node that was found", proven(user, "user"), closed, "user", false, placement{pool: "user"}},
		{"on a hinted node of the same rank", proven(user, "another"), closed, "user", false, placement{pool: "user"}},
		{"on a nominated node of a better rank", proven(system, "system"), closed, "user", false, placement{pool: "user"}},
		{"on one of a worse rank", proven(user, "user"), closed, "system", false, placement{pool: "system", violation: true}},
		{"on one that was found and has been relabelled", proven(user, "system"), closed, "system", false, placement{pool: "system"}},
		{"in no pool", proven(unlisted, "unlisted"), closed, "unlisted", false, placement{}},
		{"in no pool, out of order", proven(system, "system"), closed, "unlisted", false, placement{violation: true}},
		{"without a proof", unproven, closed, "system", false, placement{pool: "system"}},
		{"in an open burst pool", proven(3, "virtual"), open, "virtual", false, placement{pool: "aci", reason: "Open"}},
		{"in a closed burst pool", unproven, closed, "virtual", false, placement{pool: "aci", reason: "PoolCanGrow", violation: true}},
		{"in one that is observed", unproven, observed, "virtual", false, placement{pool: "aci", reason: "PoolCanGrow"}},
		{"on a VM after it was held", proven(user, "user"), closed, "user", true, placement{pool: "user", outcome: outcomeVM}},
		{"in a burst pool after it was held", proven(3, "virtual"), open, "virtual", true, placement{pool: "aci", reason: "Open", outcome: outcomeBurst}},
		{"on a node that is gone", proven(user, "user"), open, "gone", true, placement{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, aks(t))
			h.withNodes()
			h.setCapacity(nodegroups.CanGrow, nodegroups.CanGrow)
			p := pod("p").Obj()
			if tc.held {
				must.NoError(t, h.shared.Core().V1().Pods().Informer().GetStore().Add(p))
				d := h.plugin.gatekeeper.Decide(p, gatekeeper.Snapshot{}, gate.Wait{})
				h.plugin.gatekeeper.Hold(klog.Background(), p, &d, nil, false)
			}
			tc.cycle.decision = gate.Decision{Burst: []gate.Verdict{{}, {}, tc.aci}}
			state := framework.NewCycleState()
			state.Write(stateKey, tc.cycle)
			got := h.plugin.placementOf(state, p, tc.node)
			if got.waited < 0 || !tc.held && got.waited != 0 {
				t.Errorf("waited %v", got.waited)
			}
			got.waited, got.node, got.burst = 0, nil, nil
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(placement{})); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
		})
	}
}

// TestCountPlacement: what is counted of placements, and what is there before any.
func TestCountPlacement(t *testing.T) {
	newHarness(t, aks(t)) // registers, and begins
	count := func(pool, reason string) float64 {
		n := must.Get(testutil.GetCounterMetricValue(placementsTotal.WithLabelValues(pool, reason)))(t)
		return n
	}
	violations := func() float64 {
		n := must.Get(testutil.GetCounterMetricValue(orderViolations))(t)
		return n
	}
	users, bursts, wrong := count("user", none), count("aci", "Open"), violations()
	held := must.Get(testutil.GetHistogramMetricCount(holdDuration.WithLabelValues(outcomeBurst)))(t)
	for _, p := range []placement{{pool: "user"}, {pool: "user", violation: true}, {pool: "aci", reason: "Open", outcome: outcomeBurst, waited: 1}} {
		p.count(klog.Background(), pod("p").Obj(), "node")
	}
	if u, b, v := count("user", none)-users, count("aci", "Open")-bursts, violations()-wrong; u != 2 || b != 1 || v != 1 {
		t.Errorf("%v on VMs, %v in the burst pool, %v violations", u, b, v)
	}
	if n, err := testutil.GetHistogramMetricCount(holdDuration.WithLabelValues(outcomeBurst)); err != nil || n-held != 1 {
		t.Errorf("%d durations (%v)", n-held, err)
	}
}
