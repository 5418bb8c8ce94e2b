package capacity

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// says is a source that says the same of any nodes.
type says State

func (s says) Judge([]*corev1.Node, time.Time) Judgement { return Judgement{State: State(s)} }

func TestBuild(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	const grace = 15 * time.Minute
	node := func(age time.Duration, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age)), Labels: map[string]string{"disk": "ssd"}}}
		if ready != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(now.Add(-age))}}
		}
		return n
	}
	// what is compared of a pool
	type pool struct {
		State           State
		Since           time.Duration // ago
		Nodes, Starting int
		Shapes          int
		LastReady       time.Duration // ago; 0: never
	}
	for _, tc := range []struct {
		name   string
		facts  Facts
		before Pool
		want   pool
		until  time.Duration // when the shapes change, from now; 0: never
	}{
		{name: "a pool in the state that it was in", facts: Facts{Source: says(Full)}, before: Pool{Judgement: Judgement{State: Full}, Since: now.Add(-time.Hour)},
			want: pool{State: Full, Since: time.Hour}},
		{name: "a pool that changed", facts: Facts{Source: says(CanGrow)}, before: Pool{Judgement: Judgement{State: Full}, Since: now.Add(-time.Hour)},
			want: pool{State: CanGrow}},
		{name: "a state since a time that has not come", facts: Facts{Source: says(Full)}, before: Pool{Judgement: Judgement{State: Full}, Since: now.Add(time.Hour)},
			want: pool{State: Full}},
		{name: "a full pool with a node that is not ready yet", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(time.Hour, corev1.ConditionTrue), node(time.Minute, corev1.ConditionFalse)}},
			want: pool{State: Growing, Nodes: 2, Starting: 1, Shapes: 1, LastReady: time.Hour}},
		{name: "a full pool with a node that has not reported yet", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(time.Minute, "")}},
			want: pool{State: Growing, Nodes: 1, Starting: 1, Shapes: 1}},
		{name: "a full pool with a node that is late", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(grace, corev1.ConditionFalse)}},
			want: pool{State: Full, Nodes: 1, Starting: 1, Shapes: 1}},
		{name: "a node that has just become ready", facts: Facts{Source: says(Full), Nodes: []*corev1.Node{node(10*time.Second, corev1.ConditionTrue)}},
			want: pool{State: Full, Nodes: 1, Shapes: 1, LastReady: 10 * time.Second}, until: 20 * time.Second},
		{name: "a burst pool is not judged", facts: Facts{Nodes: []*corev1.Node{node(time.Hour, corev1.ConditionTrue)}},
			want: pool{Nodes: 1, Shapes: 1, LastReady: time.Hour}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			view := Build([]Facts{tc.facts}, &View{Pools: []Pool{tc.before}}, grace, now)
			p := view.Pools[0]
			got := pool{State: p.State, Nodes: p.Nodes, Starting: p.Starting, Shapes: len(p.Shapes)}
			if !p.LastReady.IsZero() {
				got.LastReady = now.Sub(p.LastReady)
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
			if !view.ShapesUntil.Equal(until) || !view.Built.Equal(now) {
				t.Errorf("shapes change at %v, want %v; built at %v", view.ShapesUntil, until, view.Built)
			}
		})
	}
}

// TestChanged: what a kubelet reports every few seconds is no change.
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
