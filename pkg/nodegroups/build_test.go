package nodegroups

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// says is a source that returns this state for any nodes.
type says State

func (s says) Status(nodes []*corev1.Node, _ time.Time) SourceStatus {
	return SourceStatus{Groups: []GroupStatus{{State: State(s), Members: nodes}}}
}

var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// node returns a node of this age. Its condition Ready has been the same since its creation. With ready "", it has no
// condition.
func node(age time.Duration, ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age)), Labels: map[string]string{"disk": "ssd"}}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: n.CreationTimestamp}}
	}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

func TestBuild(t *testing.T) {
	const grace = 15 * time.Minute
	// the compared fields of a pool
	type pool struct {
		State           State
		Since           time.Duration // ago
		Nodes, Starting int
		NodeTemplates   int
		LastReady       time.Duration // ago; 0: never
	}
	for _, tc := range []struct {
		name   string
		facts  Facts
		before Pool
		want   pool
		until  time.Duration // when the templates change, from now; 0: never
	}{
		{name: "a pool in the state that it was in", facts: Facts{Source: says(Full)}, before: Pool{State: Full, Since: now.Add(-time.Hour)},
			want: pool{State: Full, Since: time.Hour}},
		{name: "a pool that changed", facts: Facts{Source: says(CanGrow)}, before: Pool{State: Full, Since: now.Add(-time.Hour)},
			want: pool{State: CanGrow}},
		{name: "a state since a time that has not come", facts: Facts{Source: says(Full)}, before: Pool{State: Full, Since: now.Add(time.Hour)},
			want: pool{State: Full}},
		{name: "a full pool with a node that is not ready yet", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(time.Hour, corev1.ConditionTrue), node(time.Minute, corev1.ConditionFalse)}},
			want: pool{State: Growing, Nodes: 2, Starting: 1, NodeTemplates: 1, LastReady: time.Hour}},
		{name: "a full pool with a node that has not reported yet", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(time.Minute, "")}},
			want: pool{State: Growing, Nodes: 1, Starting: 1, NodeTemplates: 1}},
		{name: "a full pool with a node that is late", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(grace, corev1.ConditionFalse)}},
			want: pool{State: Full, Nodes: 1, Starting: 1, NodeTemplates: 1}},
		{name: "a node that has just become ready", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(10*time.Second, corev1.ConditionTrue)}},
			want: pool{State: Full, Nodes: 1, NodeTemplates: 1, LastReady: 10 * time.Second}, until: 20 * time.Second},
		{name: "a burst pool is not judged", facts: Facts{Nodes: []*corev1.Node{node(time.Hour, corev1.ConditionTrue)}},
			want: pool{Nodes: 1, NodeTemplates: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.facts.ProvisionGrace = grace
			view := Build([]Facts{tc.facts}, &View{Pools: []Pool{tc.before}}, now)
			p := view.Pools[0]
			got := pool{State: p.State, Nodes: p.Nodes, Starting: p.Starting, NodeTemplates: len(p.NodeTemplates)}
			for _, g := range p.Groups {
				got.NodeTemplates += len(g.NodeTemplates)
				if !g.LastReady.IsZero() {
					got.LastReady = now.Sub(g.LastReady)
				}
			}
			if !p.Since.IsZero() {
				got.Since = now.Sub(p.Since)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
			var until time.Time
			if tc.until > 0 {
				until = now.Add(tc.until)
			}
			if !view.TemplatesUntil.Equal(until) || !view.Built.Equal(now) {
				t.Errorf("shapes change at %v, want %v; built at %v", view.TemplatesUntil, until, view.Built)
			}
		})
	}
}

// TestChanged: a kubelet's regular reports are no change.
func TestChanged(t *testing.T) {
	base := func() *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "gpu", Value: "a", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*corev1.Node)
		want   bool
	}{
		{"a heartbeat", func(n *corev1.Node) { n.Status.Conditions[1].LastHeartbeatTime = metav1.Now() }, false},
		{"another condition", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }, false},
		{"an annotation", func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }, false},
		{"no longer ready", func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionUnknown }, true},
		{"the condition is gone", func(n *corev1.Node) { n.Status.Conditions = nil }, true},
		{"a label", func(n *corev1.Node) { n.Labels["disk"] = "hdd" }, true},
		{"a taint's value", func(n *corev1.Node) { n.Spec.Taints[0].Value = "b" }, true},
		{"a taint's effect", func(n *corev1.Node) { n.Spec.Taints[0].Effect = corev1.TaintEffectNoExecute }, true},
		{"it is being taken away", func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }, true},
		{"its size", func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{} }, true},
	} {
		changed := base()
		tc.change(changed)
		if got := Changed(base(), changed); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestArrival: when a node last became usable, and how many are.
func TestArrival(t *testing.T) {
	ready, starting, broken := node(2*time.Hour, corev1.ConditionTrue), node(time.Minute, corev1.ConditionFalse), node(2*time.Hour, corev1.ConditionFalse)
	build := func(before *View, at time.Time, nodes ...*corev1.Node) *View {
		return Build([]Facts{{Source: says(Full), Nodes: nodes, ProvisionGrace: 15 * time.Minute}}, before, at)
	}
	for _, tc := range []struct {
		name   string
		nodes  []*corev1.Node
		usable int
		came   bool
	}{
		{"nothing changes", []*corev1.Node{ready, starting}, 1, false},
		{"one is ordered", []*corev1.Node{ready, starting, starting}, 1, false},
		{"one has come", []*corev1.Node{ready, node(time.Minute, corev1.ConditionTrue)}, 2, true},
		{"one has come, and one is ordered", []*corev1.Node{ready, node(time.Minute, corev1.ConditionTrue), starting}, 2, true},
		{"one has come, and one has broken", []*corev1.Node{broken, node(time.Minute, corev1.ConditionTrue)}, 1, true},
		{"one has broken", []*corev1.Node{broken, starting}, 0, false},
	} {
		before := build(&View{Pools: make([]Pool, 1)}, now.Add(-time.Hour), ready, starting)
		g := build(before, now, tc.nodes...).Pools[0].Groups[0]
		want := now.Add(-time.Hour)
		if tc.came {
			want = now
		}
		if g.Usable != tc.usable || !g.LastArrival.Equal(want) {
			t.Errorf("%s: %d are usable, and the last came %v ago", tc.name, g.Usable, now.Sub(g.LastArrival))
		}
	}
}

// TestFollow: the differences between a group and the group in the view before, and which of its times they reset.
func TestFollow(t *testing.T) {
	const before = time.Hour
	old := func(state State, code string) Group {
		return Group{GroupStatus: GroupStatus{Name: "g", State: state, Version: "2/3"}, Since: now.Add(-before), LastActivity: now.Add(-before), LastChanged: now.Add(-before),
			Nodes: 2, Newest: now.Add(-2 * before), Settled: string(state) + " " + code}
	}
	is := func(state State, code string) GroupStatus {
		return GroupStatus{Name: "g", State: state, Reason: Reason{Code: code}, Members: make([]*corev1.Node, 2), Version: "2/3"}
	}
	changed := func(j GroupStatus, change func(*GroupStatus)) GroupStatus {
		change(&j)
		return j
	}
	unknown := old(Unknown, "Stale")
	unknown.Settled = "CanGrow BelowMax"
	starting := old(CanGrow, "BelowMax")
	starting.Starting = 1
	for _, tc := range []struct {
		name                  string
		old                   Group
		now                   GroupStatus
		since, moved, touched bool // whether Since, LastActivity and LastChanged are reset
	}{
		{"nothing", old(CanGrow, "BelowMax"), is(CanGrow, "BelowMax"), false, false, false},
		{"it is full now", old(CanGrow, "BelowMax"), is(Full, "AtMax"), true, true, false},
		{"it failed to grow", old(CanGrow, "BelowMax"), is(CanGrow, "BackingOff"), false, true, false},
		{"it rose", old(CanGrow, "BelowMax"), changed(is(CanGrow, "BelowMax"), func(j *GroupStatus) { j.LastScaleUp = now; j.Version = "3/3" }), false, true, true},
		{"its target fell", old(CanGrow, "BelowMax"), changed(is(CanGrow, "BelowMax"), func(j *GroupStatus) { j.Version = "1/3" }), false, false, true},
		{"a node came", old(CanGrow, "BelowMax"), changed(is(CanGrow, "BelowMax"), func(j *GroupStatus) { j.Members = append(j.Members, nil) }), false, true, false},
		{"a node came, and another went", old(CanGrow, "BelowMax"), changed(is(CanGrow, "BelowMax"), func(j *GroupStatus) {
			j.Members = []*corev1.Node{nil, {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-before))}}}
		}), false, true, false},
		{"a node went", old(CanGrow, "BelowMax"), changed(is(CanGrow, "BelowMax"), func(j *GroupStatus) { j.Members = j.Members[:1] }), false, false, false},
		{"it is unknown", old(CanGrow, "BelowMax"), is(Unknown, "Stale"), true, false, false},
		{"it is known again, as it was before", unknown, is(CanGrow, "BelowMax"), true, false, false},
		{"it is known again, and another", unknown, is(Full, "AtMax"), true, true, false},
		{"a node that was starting can be used, or is late", starting, is(CanGrow, "BelowMax"), false, true, false},
		{"and while it is unknown", starting, is(Unknown, "Stale"), true, true, false},
		{"another kind of nodes", old(CanGrow, "BelowMax"), changed(is(CanGrow, "BelowMax"), func(j *GroupStatus) { j.Members, j.Seen = nil, []NodeTemplate{{Labels: map[string]string{"a": "b"}}} }), false, false, true},
		{"another group", Group{GroupStatus: GroupStatus{Name: "other"}}, is(CanGrow, "BelowMax"), true, true, true},
	} {
		for i := range tc.now.Members {
			if tc.now.Members[i] == nil {
				tc.now.Members[i] = &corev1.Node{}
			}
		}
		if len(tc.now.Members) > 0 {
			tc.old.NodeTemplates = []NodeTemplate{{}}
		}
		view := Build([]Facts{{Source: groups{tc.now}}}, &View{Pools: []Pool{{Groups: []Group{tc.old}}}}, now)
		g := view.Pools[0].Groups[0]
		for what, c := range map[string]struct {
			at  time.Time
			now bool
		}{"since": {g.Since, tc.since}, "moved": {g.LastActivity, tc.moved}, "touched": {g.LastChanged, tc.touched}} {
			if c.at.Equal(now) != c.now || !c.now && !c.at.Equal(now.Add(-before)) {
				t.Errorf("%s: %s at %v, want now: %v", tc.name, what, c.at, c.now)
			}
		}
	}
}

// TestCreditFacts: the facts about a group that start its credit anew, in looks half a minute apart. An unknown group and a
// node that took nothing change none of them.
func TestCreditFacts(t *testing.T) {
	at := func(look int) time.Time { return now.Add(time.Duration(look) * 30 * time.Second) }
	is := GroupStatus{Name: "g", State: Full, Limits: "3", Seen: []NodeTemplate{{}}}
	room, took := map[types.UID]string{}, map[types.UID]time.Time{}
	var vms []*corev1.Node // the youngest last
	for i := range 4 {
		vms = append(vms, node(time.Duration(4-i)*time.Minute, corev1.ConditionTrue))
		vms[i].UID = types.UID(fmt.Sprint(i))
	}
	serve := func(vm int, cpu string, look int) { room[vms[vm].UID], took[vms[vm].UID] = cpu, at(look) }
	served := func(which ...int) (all []Service) {
		for _, i := range which {
			all = append(all, Service{UID: vms[i].UID, Made: vms[i].CreationTimestamp.Time, At: took[vms[i].UID], Node: NodeTemplate{Labels: vms[i].Labels, Allocatable: cpus(room[vms[i].UID])}})
		}
		return all
	}
	view := &View{Pools: make([]Pool, 1)}
	var want Group
	for look, change := range []func(){
		func() { want.Spells, want.LimitsChanged = []Spell{{}}, at(0) },
		func() {
			is.State, is.LastScaleUp, is.Version = CanGrow, at(1), "an order"
			want.Spells, want.Orders = []Spell{{To: at(1)}}, []time.Time{at(1)}
		},
		func() { is.LastScaleUp, is.Members, want.Orders = at(2), vms[1:2], []time.Time{at(1), at(2)} },
		func() { // the third order within a minute
			is.LastScaleUp = at(2).Add(time.Second)
			serve(1, "2", 3)
			want.Orders, want.Served = []time.Time{at(1), at(2).Add(time.Second)}, served(1)
		},
		func() { is.Members = vms[:2]; serve(0, "2", 3) },                                              // an older node, at the same time
		func() { is.Members = slices.Clone(is.Members); serve(0, "2", 5); want.Served = served(1, 0) }, // and once more
		func() { is.State, is.Limits, is.Members = Unknown, "", vms },
		func() { // a smaller one, and a change of the limits
			is.State, is.Limits = Full, "4"
			serve(2, "1", 7)
			want.LimitsChanged, want.Spells, want.Served = at(7), append(want.Spells, Spell{From: at(7)}), served(2, 1, 0)
		},
		func() { room["2"] = "500m"; want.Served = served(2, 1, 0) }, // a daemon comes
		func() { serve(3, "3", 9); want.Served = served(3) },
		func() { is.Members, is.Seen = nil, []NodeTemplate{{Labels: map[string]string{"a": "b"}}} },
	} {
		change()
		view = Build([]Facts{{Source: groups{is}, ProvisionGrace: time.Hour, Served: func(node *corev1.Node) (corev1.ResourceList, time.Time) {
			return cpus(room[node.UID]), took[node.UID]
		}}}, view, at(look))
		g := view.Pools[0].Groups[0]
		got := Group{LimitsChanged: g.LimitsChanged, Orders: g.Orders, Spells: g.Spells, Served: g.Served}
		if diff := cmp.Diff(want, got); diff != "" || !view.Pools[0].Known.Equal(at(0)) {
			t.Errorf("look %d: known at %v; (-want,+got):\n%s", look, view.Pools[0].Known, diff)
		}
	}
	other := is
	other.Name, other.State = "new", CanGrow
	view = Build([]Facts{{Source: groups{is, other}}}, view, at(1).Add(Remembered+time.Second))
	if g := view.Pools[0].Groups[0]; len(g.Orders) != 1 || len(g.Spells) != 1 {
		t.Errorf("after an hour, the orders at %v and the spells %v are known", g.Orders, g.Spells)
	}
	if g := view.Pools[0].Groups[1]; !g.NotFullSince(at(0)).Equal(at(1).Add(Remembered + time.Second)) {
		t.Errorf("a group that appears could grow before: %v", g.Spells)
	}
}

// cpus returns a list with this many CPUs, or nil for "".
func cpus(n string) corev1.ResourceList {
	if n == "" {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
}

// groups is a source that returns these groups for any nodes.
type groups []GroupStatus

func (g groups) Status([]*corev1.Node, time.Time) SourceStatus { return SourceStatus{Groups: g} }

// TestSummary: the state and the reason of a pool whose groups have several states.
func TestSummary(t *testing.T) {
	group := func(state State, detail string) GroupStatus {
		return GroupStatus{State: state, Reason: Reason{Code: string(state), Detail: detail}}
	}
	for _, tc := range []struct {
		groups []GroupStatus
		state  State
		detail string
	}{
		{[]GroupStatus{group(Full, "a: 3 of 3"), group(Full, "b: 2 of 2")}, Full, "a: 3 of 3; b: 2 of 2"},
		{[]GroupStatus{group(Full, "a: 3 of 3"), group(CanGrow, "b: 1 of 2")}, CanGrow, "CanGrow b: 1 of 2; Full a: 3 of 3"},
		{[]GroupStatus{group(CanGrow, "a"), group(Growing, "b"), group(Unknown, "c")}, Growing, "Growing b; CanGrow a; Unknown c"},
		{[]GroupStatus{group(Unknown, "a"), group(Full, "")}, Unknown, "Unknown a"},
		{[]GroupStatus{group(Full, "")}, Full, ""},
	} {
		j := SourceStatus{Groups: tc.groups}.Summarized()
		if j.State != tc.state || j.Reason.Code != string(tc.state) || j.Reason.Detail != tc.detail {
			t.Errorf("%s %+v, want %s %q", j.State, j.Reason, tc.state, tc.detail)
		}
	}
}
