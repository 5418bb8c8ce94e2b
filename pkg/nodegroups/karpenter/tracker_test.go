package karpenter

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

var start = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// object returns a ready NodePool "default" with this spec and status.resources.
func object(t testing.TB, spec, resources string) []byte {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec: %s
status: {resources: %s, conditions: [{type: Ready, status: "True", reason: Ready, message: "", lastTransitionTime: "2026-11-21T09:00:00Z"}]}
`, spec, resources)))
	must.NoError(t, err)
	return data
}

// nodes returns n nodes of the NodePool "default", of the instance type s-4, and a node of another NodePool.
func nodes(n int) []*corev1.Node { return nodesOf(n, "s-4", "4") }

func nodesOf(n int, instanceType, cpu string) []*corev1.Node {
	list := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{nodegroups.KarpenterNodePoolLabel: "other"}}}}
	for i := range n {
		list = append(list, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{nodegroups.KarpenterNodePoolLabel: "default", corev1.LabelInstanceTypeStable: instanceType}},
			Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("16Gi")}},
		})
	}
	return list
}

func TestStatus(t *testing.T) {
	const (
		pinned  = `{limits: {cpu: 10}, template: {spec: {requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [s-4]}]}}}`
		skuCPU  = `{limits: {cpu: 10}, template: {spec: {requirements: [{key: karpenter.azure.com/sku-cpu, operator: In, values: ["8", "4"]}]}}}`
		skuMore = `{limits: {cpu: 10}, template: {spec: {requirements: [{key: karpenter.azure.com/sku-cpu, operator: Gt, values: ["3"]}]}}}`
	)
	for _, tc := range []struct {
		name      string
		spec      string
		resources string
		nodes     int
		want      nodegroups.State
		code      string
		detail    string
	}{
		{"below its limits", `{limits: {cpu: 10}}`, `{cpu: 4, nodes: 1}`, 1, nodegroups.CanGrow, "BelowLimits", "NodePool default: cpu: 4 of 10"},
		{"at a limit", `{limits: {cpu: 8, memory: 100Gi}}`, `{cpu: 8, memory: 32Gi, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: cpu: 8 of 8"},
		{"beyond a limit", `{limits: {cpu: 7}}`, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: cpu: 8 of 7"},
		{"at its limit of nodes", `{limits: {nodes: 2}}`, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: nodes: 2 of 2"},
		{"below its limit of nodes", `{limits: {nodes: 3}}`, `{cpu: 8, nodes: 2}`, 2, nodegroups.CanGrow, "BelowLimits", "NodePool default: nodes: 2 of 3"},
		{"nodes on their way to its limit of nodes", `{limits: {nodes: 2}}`, `{cpu: 8, nodes: 2}`, 1, nodegroups.Growing, "Provisioning", "NodePool default: 1 to come"},
		{"a limit of no nodes", `{limits: {nodes: 0}}`, `{cpu: 0, nodes: 0}`, 0, nodegroups.Full, "AtLimits", "NodePool default: nodes: 0 of 0"},
		{"beyond its limit of nodes", `{limits: {nodes: 2}}`, `{cpu: 12, nodes: 3}`, 3, nodegroups.Full, "AtLimits", "NodePool default: nodes: 3 of 2"},
		{"a limit of a device says nothing of pods without it", `{limits: {nvidia.com/gpu: 0}}`, `{cpu: 8, nodes: 2}`, 2, nodegroups.CanGrow, "BelowLimits", "NodePool default: nvidia.com/gpu: 0 of 0"},
		{"a limit of a device that is exceeded stops every node", `{limits: {nvidia.com/gpu: 1}}`, `{nvidia.com/gpu: 2, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: nvidia.com/gpu: 2 of 1"},
		{"limits of zero", `{limits: {cpu: 0}}`, `{cpu: 0}`, 0, nodegroups.Full, "AtLimits", "NodePool default: cpu: 0 of 0"},
		{"no limits", `{}`, `{cpu: 4000, nodes: 1000}`, 1000, nodegroups.CanGrow, "NoLimits", "NodePool default"},
		{"nodes on their way", `{limits: {cpu: 8}}`, `{cpu: 8, nodes: 2}`, 1, nodegroups.Growing, "Provisioning", "NodePool default: 1 to come"},
		{"never counted", `{limits: {cpu: 0}}`, `null`, 0, nodegroups.Unknown, "NodePoolNotCounted", "NodePool default"},
		{"what is left is less than the only instance type", pinned, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: cpu: 8 of 10, and a node has at least 4"},
		{"what is left is less than an instance type that was never seen", pinned, `{cpu: 8, nodes: 0}`, 0, nodegroups.CanGrow, "BelowLimits", "NodePool default: cpu: 8 of 10"},
		{"what is left is less than the smallest size", skuCPU, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: cpu: 8 of 10, and a node has at least 4"},
		{"what is left is less than any size that is asked for", skuMore, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "AtLimits", "NodePool default: cpu: 8 of 10, and a node has at least 4"},
		{"what is left is enough for a size", skuMore, `{cpu: 6, nodes: 2}`, 2, nodegroups.CanGrow, "BelowLimits", "NodePool default: cpu: 6 of 10"},
		{"a fixed number of nodes, all there", `{replicas: 2}`, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "FixedReplicas", "NodePool default: 2"},
		{"a fixed number of nodes, not ordered yet", `{replicas: 2}`, `{cpu: 4, nodes: 1}`, 1, nodegroups.Growing, "Provisioning", "NodePool default: 1 to come"},
		{"a fixed number of nodes above its limit", `{replicas: 3, limits: {nodes: 2}}`, `{cpu: 8, nodes: 2}`, 2, nodegroups.Full, "FixedReplicas", "NodePool default: 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
			must.NoError(t, tracker.Observe(object(t, tc.spec, tc.resources), nodes(tc.nodes), start))
			j := tracker.Status(nodes(tc.nodes), start)
			want := nodegroups.Reason{Code: tc.code, Sentence: j.Reason.Sentence, Detail: tc.detail}
			if diff := cmp.Diff(want, j.Reason); diff != "" || j.State != tc.want {
				t.Errorf("state %s, want %s, reason (-want,+got):\n%s", j.State, tc.want, diff)
			}
			if remaining := j.Groups[0].Remaining; len(j.Groups) != 1 || (remaining != nil) != (tc.want == nodegroups.CanGrow && strings.Contains(tc.spec, "limits")) {
				t.Errorf("remaining %v of %d groups", remaining, len(j.Groups))
			}
		})
	}
}

// TestSizes: the number of ordered nodes without a Node, and the maximum number of nodes.
func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		spec, resources string
		nodes, arriving int
		most            int // -1: no maximum
	}{
		{`{limits: {cpu: 100}}`, `{cpu: 8, nodes: 2}`, 2, 0, -1},
		{`{limits: {cpu: 100}}`, `{cpu: 12, nodes: 3}`, 1, 2, -1},
		{`{limits: {nodes: 5}}`, `{cpu: 12, nodes: 3}`, 2, 1, 5},
		{`{replicas: 4}`, `{cpu: 12, nodes: 3}`, 3, 1, 4},
		{`{replicas: 4, limits: {nodes: 3}}`, `{cpu: 12, nodes: 3}`, 3, 0, 3},
		{`{replicas: 2, limits: {nodes: 3}}`, `{cpu: 8, nodes: 2}`, 2, 0, 2},
	} {
		tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
		must.NoError(t, tracker.Observe(object(t, tc.spec, tc.resources), nodes(tc.nodes), start))
		g, most := tracker.Status(nodes(tc.nodes), start).Groups[0], -1
		if g.MaxNodes != nil {
			most = *g.MaxNodes
		}
		if g.Arriving != tc.arriving || most != tc.most {
			t.Errorf("%s with %s and %d nodes: %d arrive and %d is the maximum, want %d and %d", tc.spec, tc.resources, tc.nodes, g.Arriving, most, tc.arriving, tc.most)
		}
	}
}

func TestWhyUnknown(t *testing.T) {
	tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
	judge := func() string {
		return string(tracker.Status(nil, start).State) + " " + tracker.Status(nil, start).Reason.Code
	}
	if got := judge(); got != "Unknown NodePoolMissing" {
		t.Errorf("before anything was seen: %s", got)
	}
	for _, tc := range []struct{ object, want string }{
		{"{", "Unknown NodePoolUnreadable"},
		{`{"apiVersion":"karpenter.sh/v1beta1","kind":"NodePool"}`, "Unknown NodePoolUnreadable"},
		{`{"apiVersion":"karpenter.sh/v1","kind":"NodePool","spec":{"limits":{"cpu":"many"}}}`, "Unknown NodePoolUnreadable"},
		{`{"apiVersion":"karpenter.sh/v1","kind":"NodePool","spec":{"limits":{"cpu":"1e100000000"}}}`, "Unknown NodePoolUnreadable"},
		{`{"apiVersion":"karpenter.sh/v1","kind":"NodePool","metadata":{"deletionTimestamp":"2026-11-21T09:00:00Z"},"status":{"resources":{}}}`, "Unknown NodePoolDeleting"},
		{`{"apiVersion":"karpenter.sh/v1","kind":"NodePool","status":{"resources":{}}}`, "Unknown NodePoolNotReady"},
		{`{"apiVersion":"karpenter.sh/v1","kind":"NodePool","status":{"resources":{},"conditions":[{"type":"Ready","status":"Unknown","message":"no NodeClass"}]}}`, "Unknown NodePoolNotReady"},
	} {
		err := tracker.Observe([]byte(tc.object), nil, start)
		if got := judge(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.object, got, tc.want)
		}
		if strings.Contains(tc.object, "v1beta1") && !strings.Contains(fmt.Sprint(err), `of "karpenter.sh/v1beta1", and a NodePool of karpenter.sh/v1 is needed`) {
			t.Errorf("%s: error %v", tc.object, err)
		}
		if unreadable := strings.HasSuffix(tc.want, "Unreadable"); (err != nil) != unreadable {
			t.Errorf("%s: error %v", tc.object, err)
		}
	}
	tracker.Lose(ReasonNoResource, start)
	if got := judge(); got != "Unknown NoKarpenter" {
		t.Errorf("without the resource: %s", got)
	}
}

// TestNodesThatNeverCome: ordered nodes count as upcoming until provisionGrace after the order, or after the last node
// came.
func TestNodesThatNeverCome(t *testing.T) {
	tracker := NewTracker(pool.Graces{Provision: 10 * time.Minute}, NewLaunches())
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	look := func(minute, ordered, present int, want nodegroups.State, code string) {
		t.Helper()
		must.NoError(t, tracker.Observe(object(t, `{limits: {cpu: 12}}`, fmt.Sprintf("{cpu: %d, nodes: %d}", 4*ordered, ordered)), nodes(present), at(minute)))
		if j := tracker.Status(nodes(present), at(minute)); j.State != want || j.Reason.Code != code {
			t.Errorf("minute %d: %s %s, want %s %s", minute, j.State, j.Reason.Code, want, code)
		}
	}
	look(0, 1, 1, nodegroups.CanGrow, "BelowLimits")
	look(61, 3, 1, nodegroups.Growing, "Provisioning") // nothing was observed for an hour
	if j := tracker.Status(nil, at(61)); !j.Until.Equal(at(71)) {
		t.Errorf("it changes by itself at %v, want 10 minutes after the order", j.Until)
	}
	look(65, 3, 2, nodegroups.Growing, "Provisioning")
	look(74, 3, 2, nodegroups.Growing, "Provisioning")
	look(75, 3, 2, nodegroups.Full, "NodesMissing")
	if j := tracker.Status(nodes(2), at(75)); !j.Groups[0].LastScaleUp.Equal(at(65)) {
		t.Errorf("last rise at %v, want minute 65", j.Groups[0].LastScaleUp)
	}
	look(76, 2, 2, nodegroups.CanGrow, "BelowLimits") // Karpenter gave up the third
	look(77, 3, 3, nodegroups.Full, "AtLimits")

	// A new order starts the grace anew, although an older order is late.
	look(90, 3, 2, nodegroups.Growing, "Provisioning")
	look(99, 4, 2, nodegroups.Growing, "Provisioning")
	look(108, 4, 2, nodegroups.Growing, "Provisioning")
	look(109, 4, 2, nodegroups.Full, "NodesMissing")
	// Karpenter does not count a node that it is removing. The node's replacement is upcoming.
	look(120, 3, 3, nodegroups.Full, "AtLimits")
	at = func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Hour) } // nothing was observed for days
	leaving := nodes(3)
	leaving[1].Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
	must.NoError(t, tracker.Observe(object(t, `{limits: {cpu: 12}}`, "{cpu: 12, nodes: 3}"), leaving, at(121)))
	if j := tracker.Status(nil, at(121)); j.State != nodegroups.Growing {
		t.Errorf("while a node is replaced: %s %+v, want Growing", j.State, j.Reason)
	}
	look(122, 3, 3, nodegroups.Full, "AtLimits")

	// Another tracker takes over the state.
	next := NewTracker(pool.Graces{Provision: 10 * time.Minute}, NewLaunches())
	next.Restore(tracker.Memory(), at(130))
	tracker = next
	look(130, 3, 3, nodegroups.Full, "AtLimits")
	if j := tracker.Status(nil, at(130)); len(j.Outages) != 0 || !j.Groups[0].LastScaleUp.Equal(at(122)) {
		t.Errorf("pauses %v, last rise %v: want what the first tracker remembered", j.Outages, j.Groups[0].LastScaleUp)
	}
}

// TestLease: if Karpenter does not renew its Lease, a NodePool that could grow is Unknown, and the time does not count
// for pods that wait. A NodePool at its limits stays Full.
func TestLease(t *testing.T) {
	tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	look := func(now int, renewed int, used string, want nodegroups.State, code string) nodegroups.SourceStatus {
		t.Helper()
		tracker.ObserveLease(at(renewed), 3*time.Minute)
		must.NoError(t, tracker.Observe(object(t, `{limits: {cpu: 10}}`, used), nil, at(now)))
		s := tracker.Status(nil, at(now))
		if s.State != want || s.Reason.Code != code {
			t.Errorf("after %d s: %s by %+v, want %s by %s", now, s.State, s.Reason, want, code)
		}
		return s
	}
	look(10, 8, `{cpu: 4}`, nodegroups.CanGrow, "BelowLimits")
	look(187, 8, `{cpu: 4}`, nodegroups.CanGrow, "BelowLimits")
	s := look(188, 8, `{cpu: 4}`, nodegroups.Unknown, "KarpenterDead")
	if diff := cmp.Diff([]nodegroups.Outage{{From: at(8)}}, s.Outages); diff != "" {
		t.Errorf("outages (-want,+got):\n%s", diff)
	}
	look(190, 8, `{cpu: 10}`, nodegroups.Full, "AtLimits")
	s = look(200, 200, `{cpu: 4}`, nodegroups.CanGrow, "BelowLimits")
	if diff := cmp.Diff([]nodegroups.Outage{{From: at(8), To: at(200)}}, s.Outages); diff != "" {
		t.Errorf("outages (-want,+got):\n%s", diff)
	}
	look(380, 200, `{cpu: 4}`, nodegroups.Unknown, "KarpenterDead")
	next := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches()) // a new leader that has seen no renewal
	next.Restore(tracker.Memory(), at(390))
	next.ObserveLease(time.Time{}, 3*time.Minute) // the Lease exists and is old
	must.NoError(t, next.Observe(object(t, `{limits: {cpu: 10}}`, `{cpu: 4}`), nil, at(390)))
	if s := next.Status(nil, at(390)); s.Reason.Code != "KarpenterDead" || !s.Outages[1].To.IsZero() {
		t.Errorf("the next leader has %+v", s)
	}
	next.ForgetLease() // another Karpenter without a Lease, for example that of AKS
	must.NoError(t, next.Observe(object(t, `{limits: {cpu: 10}}`, `{cpu: 4}`), nil, at(395)))
	if s := next.Status(nil, at(395)); s.State != nodegroups.CanGrow || s.Outages[1].To.IsZero() || !next.Memory().Renewed.IsZero() {
		t.Errorf("without a Lease: %+v", s)
	}
	next.Restore(tracker.Memory(), at(396))
	tracker = next
	look(400, 400, `{cpu: 4}`, nodegroups.CanGrow, "BelowLimits")
	if m := tracker.Memory(); !m.Renewed.IsZero() {
		t.Errorf("it is published that Karpenter is dead since %v", m.Renewed)
	}
}

// TestRefusedAt: Karpenter's own event on the pod says that it cannot place the pod, unless it found a node later.
func TestRefusedAt(t *testing.T) {
	event := func(kind, reason, source string, minutes int) *corev1.Event {
		return &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: kind, UID: "u"}, Reason: reason, Source: corev1.EventSource{Component: source},
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start)}, LastTimestamp: metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute))}
	}
	failed := event("Pod", "FailedScheduling", "karpenter", 1)
	for _, tc := range []struct {
		name   string
		events []*corev1.Event
		want   time.Duration // after start; 0: it is not refused
	}{
		{"failed", []*corev1.Event{failed}, time.Minute},
		{"failed twice", []*corev1.Event{event("Pod", "FailedScheduling", "karpenter", 6), failed}, 6 * time.Minute},
		{"a node was found", []*corev1.Event{event("Pod", "Nominated", "karpenter", 1)}, 0},
		{"a node was found later", []*corev1.Event{failed, event("Pod", "Nominated", "karpenter", 2)}, 0},
		{"a node was found before", []*corev1.Event{event("Pod", "Nominated", "karpenter", 0), failed}, time.Minute},
		{"another scheduler's", []*corev1.Event{event("Pod", "FailedScheduling", "pool-priority-scheduler", 1)}, 0},
		{"another event", []*corev1.Event{event("Pod", "Evicted", "karpenter", 1)}, 0},
		{"on a node", []*corev1.Event{event("Node", "FailedScheduling", "karpenter", 1)}, 0},
	} {
		var results []Simulation
		for _, e := range tc.events {
			results = append(results, SimulationOf(e))
		}
		var want time.Time
		if tc.want > 0 {
			want = start.Add(tc.want)
		}
		if got := RefusedAt("u", results); !got.Equal(want) || !RefusedAt("v", results).IsZero() {
			t.Errorf("%s: %v, want %v", tc.name, got, want)
		}
	}
}

// TestNewNodes: the NodePool's template and requirements describe the nodes that the group may get.
func TestNewNodes(t *testing.T) {
	tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
	object := object(t, `{template: {metadata: {labels: {team: web}}, spec: {
		taints: [{key: dedicated, value: web, effect: NoSchedule}, {key: node.kubernetes.io/not-ready, effect: NoSchedule}],
		requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}, {key: kubernetes.io/arch, operator: In, values: [amd64]},
			{key: topology.kubernetes.io/zone, operator: NotIn, values: [a]}]}}}`, `{cpu: 0}`)
	must.NoError(t, tracker.Observe(object, nil, start))
	want := &nodegroups.NewNodes{
		Choices: map[string][]string{"team": {"web"}, "kubernetes.io/arch": {"amd64"}, nodegroups.KarpenterNodePoolLabel: {"default"}},
		Taints:  []corev1.Taint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}},
	}
	if diff := cmp.Diff(want, tracker.Status(nil, start).Groups[0].New); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
}

// TestRealNodePools reads NodePools that Karpenter 1.8.0 wrote, with its kwok provider. In the files 06 and 07,
// status.resources was changed.
func TestRealNodePools(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data := must.ReadFile(t, file)
			var sample struct {
				Nodes  int             `json:"nodes"`
				Want   string          `json:"want"`
				Object json.RawMessage `json:"object"`
			}
			must.NoError(t, json.Unmarshal(data, &sample))
			tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
			nodes := nodesOf(sample.Nodes, "s-1", "1")
			must.NoError(t, tracker.Observe(sample.Object, nodes, start))
			if j := tracker.Status(nodes, start); string(j.State)+" "+j.Reason.Code != sample.Want {
				t.Errorf("%s %+v, want %s", j.State, j.Reason, sample.Want)
			}
		})
	}
}

// TestOutages: the time in which Karpenter does not use the NodePool, or in which it cannot be read, is an outage.
func TestOutages(t *testing.T) {
	const ready = `{"apiVersion":"karpenter.sh/v1","kind":"NodePool","metadata":{"name":"a"},"status":{"resources":{},"conditions":[{"type":"Ready","status":"True"}]}}`
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	for _, tc := range []struct {
		name string
		lose func(*Tracker, time.Time)
	}{
		{"it is not ready", func(t *Tracker, now time.Time) {
			_ = t.Observe([]byte(strings.Replace(ready, `"True"`, `"False"`, 1)), nil, now)
		}},
		{"it is not counted", func(t *Tracker, now time.Time) {
			_ = t.Observe([]byte(strings.Replace(ready, `{}`, `null`, 1)), nil, now)
		}},
		{"it is being deleted", func(t *Tracker, now time.Time) {
			_ = t.Observe([]byte(strings.Replace(ready, `"name":"a"`, `"deletionTimestamp":"2026-11-21T09:00:00Z"`, 1)), nil, now)
		}},
		{"it is not well-formed", func(t *Tracker, now time.Time) { _ = t.Observe([]byte("{"), nil, now) }},
		{"it cannot be read", func(t *Tracker, now time.Time) { t.Fail(errors.New("no"), now) }},
		{"it is gone", func(t *Tracker, now time.Time) { t.Lose(ReasonMissing, now) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
			observe := func(now time.Time) {
				must.NoError(t, tracker.Observe([]byte(ready), nil, now))
			}
			observe(at(0))
			tc.lose(tracker, at(1))
			tc.lose(tracker, at(2))
			j := tracker.Status(nil, at(2))
			if diff := cmp.Diff([]nodegroups.Outage{{From: at(1)}}, j.Outages); diff != "" || j.State != nodegroups.Unknown || !j.HasScanned(at(1)) {
				t.Errorf("%s %s, pauses (-want,+got):\n%s", j.State, j.Reason.Code, diff)
			}
			next := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
			next.Restore(tracker.Memory(), at(3))
			tracker = next
			tc.lose(tracker, at(3))
			observe(at(4))
			j = tracker.Status(nil, at(4))
			if diff := cmp.Diff([]nodegroups.Outage{{From: at(1), To: at(4)}}, j.Outages); diff != "" || j.State != nodegroups.CanGrow {
				t.Errorf("%s %s, pauses (-want,+got):\n%s", j.State, j.Reason.Code, diff)
			}
		})
	}
}

// TestVersion: the version changes with the NodePool's limits, and with what it has ordered.
func TestVersion(t *testing.T) {
	version := func(spec, resources string) string {
		tracker := NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
		must.NoError(t, tracker.Observe(object(t, spec, resources), nil, start))
		g := tracker.Status(nil, start).Groups[0]
		if !g.Open || g.MinWait != MaxWait || !g.ByEvent || g.Name != "default" {
			t.Errorf("open %v, minWait %v, name %q", g.Open, g.MinWait, g.Name)
		}
		return g.Version
	}
	before := version(`{limits: {cpu: 10}}`, `{cpu: 4, nodes: 1}`)
	for _, tc := range []struct {
		spec, resources string
		same            bool
	}{
		{`{limits: {cpu: 10}}`, `{cpu: 4, nodes: 1}`, true},
		{`{limits: {cpu: 10}}`, `{cpu: 8, nodes: 2}`, false},
		{`{limits: {cpu: 11}}`, `{cpu: 4, nodes: 1}`, false},
		{`{limits: {cpu: 10, memory: 1Gi}}`, `{cpu: 4, nodes: 1}`, false},
		{`{}`, `{cpu: 4, nodes: 1}`, false},
	} {
		if got := version(tc.spec, tc.resources); (got == before) != tc.same {
			t.Errorf("%s with %s: version %q after %q", tc.spec, tc.resources, got, before)
		}
	}
}
