package published

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 123456789, time.UTC)

func TestRoundTrip(t *testing.T) {
	want := &Status{
		View: testView(),
		Memory: Memory{
			Written: now,
			ClusterAutoscaler: clusterautoscaler.Memory{Loops: []clusterautoscaler.Loop{{Ended: now}, {Ended: now, Quiet: true}}, Outages: []nodegroups.Outage{{From: now, To: now}, {From: now}}, Incarnation: "a", Unhealthy: true, UID: "u", Stamp: "s", Changed: now, Groups: map[string]clusterautoscaler.Group{
				"aks-userpool-1-vmss": {Target: 3, Present: 2, LastScaleUp: now, Progress: now, BackoffSince: now, BackoffSeen: now, BackoffInfo: clusterautoscaler.BackoffInfo{ErrorCode: "quota", ErrorMessage: "none left"},
					UnhealthySince: now, Nodes: 2, Newest: now, Removed: []int{0, 1}, Pool: "user", Seen: []nodegroups.NodeTemplate{{Labels: map[string]string{"agentpool": "userpool"}, Taints: []corev1.Taint{{Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}}, Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4")}}}},
			}},
			NodePools:     map[string]karpenter.Memory{"default": {Outages: []nodegroups.Outage{{From: now}}, Present: 1}},
			Unschedulable: map[types.UID]time.Time{"u": now}, Ignored: map[types.UID]time.Time{"u": now},
			Override: Override{UID: "o", Override: gate.Override{Gate: gate.OverrideOpen, Until: now}},
			BurstPools: map[string]breaker.Memory{"aci": {State: breaker.Refusing, Since: now, Until: now, Backoffs: 2, Code: "HTTP429", Message: "slower", Accepted: now, Closed: now, HalfOpened: now,
				Failures: []breaker.Failure{{UID: "a", Namespace: "ns", Cause: refusal.PoolError, Code: "HTTP429", Message: "slower\u0092\x7f\ufeff\uffff", Bound: now, At: now}}, Counted: []types.UID{"a"},
				Slow: map[types.UID]breaker.Lateness{"o": {Times: 1, At: now}}, Templates: map[string]breaker.Template{"t/1": {Code: "InaccessibleImage", Message: "no", At: now}},
				Closings: []breaker.Closing{{Scope: breaker.Scope{Namespace: "ns"}, Code: "Late", Message: "late", Until: now, Times: 1, Newest: now}}, Ran: breaker.Scope{MilliCPU: 1000, Memory: 1}}},
		},
	}
	data := must.Get(want.Encode())(t)
	got := must.Get(Decode(&corev1.ConfigMap{Data: data}))(t)
	want.View, got.View = nil, nil // see TestView
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
}

func TestDecode(t *testing.T) {
	if s, err := Decode(&corev1.ConfigMap{}); err != nil || s.View != nil || !s.Memory.Written.IsZero() {
		t.Errorf("an empty ConfigMap: %+v, %v", s, err)
	}
	if _, err := Decode(&corev1.ConfigMap{Data: map[string]string{MemoryKey: `{"future": {}}`}}); err != nil {
		t.Errorf("fields of a newer version: %v", err)
	}
	data := must.Get((&Status{View: testView(), Memory: Memory{Written: now}}).Encode())(t)
	for _, key := range []string{ViewKey, MemoryKey} {
		garbage := maps.Clone(data)
		garbage[key] = "\t{"
		s, err := Decode(&corev1.ConfigMap{Data: garbage})
		if err == nil || (s.View == nil) != (key == ViewKey) || s.Memory.Written.IsZero() != (key == MemoryKey) {
			t.Errorf("garbage under %q: %v, and the other key gives %+v", key, err, s)
		}
	}
}

// FuzzDecode: for any content of the ConfigMap, Decode returns an error or a status, and does not panic.
func FuzzDecode(f *testing.F) {
	data := must.Get((&Status{View: testView(), Memory: Memory{Written: now, Unschedulable: map[types.UID]time.Time{"u": now}}}).Encode())(f)
	f.Add(data[ViewKey], data[MemoryKey])
	f.Add("", `{"clusterAutoscaler": {"groups": {"a": {"target": 1}}}}`)
	f.Fuzz(func(t *testing.T, view, memory string) {
		s, err := Decode(&corev1.ConfigMap{Data: map[string]string{ViewKey: view, MemoryKey: memory}})
		if err != nil {
			return
		}
		if s.View != nil {
			s.View.Restored("user")
		}
		clusterautoscaler.NewTracker(0, 0).Restore(s.Memory.ClusterAutoscaler, now)
		if _, err := s.Encode(); err != nil && !strings.Contains(err.Error(), "year outside of range") {
			t.Errorf("what was decoded cannot be encoded: %v", err)
		}
	})
}

// source is a source with a fixed status.
type source nodegroups.SourceStatus

func (s source) Status(nodes []*corev1.Node, _ time.Time) nodegroups.SourceStatus {
	j := nodegroups.SourceStatus(s)
	for i := range j.Groups {
		j.Groups[i].Members = nodes[:i] // the first group has no node, the second has one
	}
	return j.Summarized()
}

// published returns the pool as the next leader restores it.
func published(t *testing.T, name string, p *nodegroups.Pool) nodegroups.Pool {
	t.Helper()
	v := testView()
	v.Args.Pools[0].Name, v.Capacity.Pools[0] = name, *p
	data := must.Get((&Status{View: v}).Encode())(t)
	read := must.Get(Decode(&corev1.ConfigMap{Data: data}))(t)
	restored, ok := read.View.Restored(name)
	if _, unknown := read.View.Restored("other"); !ok || unknown {
		t.Errorf("restored: %v, and a pool that is not there: %v", ok, unknown)
	}
	return restored
}

// TestNextLeader: a leader that starts from the published state keeps the times at which pools and groups entered their
// states, and the times of their last activity, if it finds the same states.
func TestNextLeader(t *testing.T) {
	nodes := []*corev1.Node{{}, {}, {}}
	groups := func(a, b nodegroups.State, code string) source {
		return source{Groups: []nodegroups.GroupStatus{{Name: "a", State: a, Reason: nodegroups.Reason{Code: code}}, {Name: "b", State: b, Reason: nodegroups.Reason{Code: code}}}}
	}
	look := func(s source, nodes []*corev1.Node, before *nodegroups.View, at time.Time) *nodegroups.View {
		return nodegroups.Build([]nodegroups.Facts{{Nodes: nodes, Source: s}}, before, at)
	}
	at := func(minute int) time.Time { return now.Add(time.Duration(minute) * time.Minute) }
	first := look(groups(nodegroups.CanGrow, nodegroups.Full, "X"), nodes, &nodegroups.View{Pools: make([]nodegroups.Pool, 1)}, at(0))
	first = look(groups(nodegroups.CanGrow, nodegroups.CanGrow, "X"), nodes, first, at(5))

	for _, tc := range []struct {
		name         string
		groups       source
		since, moved [2]int // of the two groups, in minutes
	}{
		{"nothing changed", groups(nodegroups.CanGrow, nodegroups.CanGrow, "X"), [2]int{0, 5}, [2]int{0, 5}},
		{"a group is Full now", groups(nodegroups.CanGrow, nodegroups.Full, "X"), [2]int{0, 10}, [2]int{0, 10}},
		{"for another reason", groups(nodegroups.CanGrow, nodegroups.CanGrow, "Y"), [2]int{0, 5}, [2]int{10, 10}},
		{"they are Unknown now", groups(nodegroups.Unknown, nodegroups.Unknown, "Z"), [2]int{10, 10}, [2]int{0, 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next := look(tc.groups, nodes, &nodegroups.View{Pools: []nodegroups.Pool{published(t, "user", &first.Pools[0])}}, at(10))
			for i, g := range next.Pools[0].Groups {
				if !g.Since.Equal(at(tc.since[i])) || !g.LastActivity.Equal(at(tc.moved[i])) {
					t.Errorf("group %s since %v, moved %v, want minutes %d and %d", g.Name, g.Since.Sub(now), g.LastActivity.Sub(now), tc.since[i], tc.moved[i])
				}
			}
		})
	}
	lost := look(groups(nodegroups.Unknown, nodegroups.Unknown, "Lost"), nodes, first, at(6))
	back := look(groups(nodegroups.CanGrow, nodegroups.Full, "X"), nodes, &nodegroups.View{Pools: []nodegroups.Pool{published(t, "user", &lost.Pools[0])}}, at(10))
	if g := back.Pools[0].Groups; !g[0].LastActivity.Equal(at(0)) || !g[1].LastActivity.Equal(at(10)) {
		t.Errorf("groups that were Unknown moved %v and %v, want the first not since, the second just now", g[0].LastActivity.Sub(now), g[1].LastActivity.Sub(now))
	}
	if p := published(t, "user", &first.Pools[0]); len(p.Groups) != 2 || p.Groups[1].Nodes != 1 || p.Groups[1].Reason.Code != "X" || p.Nodes != 3 {
		t.Errorf("published: %+v", p)
	}
}
