package autoscaler

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/must"
)

// recordings are ConfigMaps that a real cluster autoscaler wrote.
const recordings = "../../../pkg/nodegroups/clusterautoscaler/testdata"

// TestRecordedText: ConfigMap writes each recorded status again, byte by byte.
func TestRecordedText(t *testing.T) {
	for _, name := range []string{"01-baseline-below-max", "02-scaleup-triggered", "04-both-pools-at-max", "05-initializing", "06-below-max_at-max_backoff"} {
		data := must.ReadFile(t, filepath.Join(recordings, name+".yaml"))
		var recorded corev1.ConfigMap
		must.NoError(t, yaml.Unmarshal(data, &recorded))
		var status Status
		must.NoError(t, yaml.UnmarshalStrict([]byte(recorded.Data["status"]), &status))
		begun := must.Get(time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", status.Time))(t)
		cm := must.Get(status.ConfigMap(begun))(t)
		if diff := cmp.Diff(recorded.Data, cm.Data); diff != "" {
			t.Errorf("%s (-want,+got):\n%s", name, diff)
		}
		if diff := cmp.Diff(recorded.Annotations, cm.Annotations); diff != "" {
			t.Errorf("%s (-want,+got):\n%s", name, diff)
		}
	}
}

// TestTimes: a group that has had no nodes has no times, as in the recorded status. Otherwise, a transition time is
// when the condition was first seen.
func TestTimes(t *testing.T) {
	a := New(Options{ScanInterval: 10 * time.Second, MaxNodeProvisionTime: time.Hour, MaxNodeStartupTime: time.Hour, OkUnready: 3, UnreadyShare: 0.45})
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	}
	world := World{Groups: []Group{
		{Name: "system", Min: 1, Max: 2, Target: 1, Instances: []Instance{{Name: "s0"}}},
		{Name: "user", Max: 3},
	}}
	world.Nodes = []*corev1.Node{node("s0"), node("virtual")}
	begin := time.Date(2026, 11, 21, 9, 39, 41, 0, time.UTC)
	first := must.Get(a.Loop(world, Filters{}, nil, begin))(t)
	second := must.Get(a.Loop(world, Filters{}, nil, begin.Add(10*time.Second)))(t)
	system, user := second.Status.Of("system"), second.Status.Of("user")
	if !system.Health.LastProbeTime.Time.Equal(begin.Add(10*time.Second)) || !system.Health.LastTransitionTime.Time.Equal(begin) {
		t.Errorf("%+v", system.Health.Times)
	}
	if !user.Health.LastProbeTime.IsZero() || !user.ScaleUp.LastTransitionTime.IsZero() {
		t.Errorf("%+v", user)
	}
	if !first.Status.ClusterWide.ScaleDown.LastProbeTime.IsZero() {
		t.Errorf("%+v", first.Status.ClusterWide.ScaleDown)
	}
	// The group gets its first node. Its health has been Healthy since before it had times: the transition time stays
	// null.
	world.Groups[1].Target, world.Groups[1].Instances = 1, []Instance{{Name: "u0"}}
	world.Nodes = append(world.Nodes, node("u0"))
	third := must.Get(a.Loop(world, Filters{}, nil, begin.Add(20*time.Second)))(t)
	if user := third.Status.Of("user").Health; user.LastProbeTime.IsZero() || !user.LastTransitionTime.IsZero() {
		t.Errorf("%+v", user)
	}
	if n := third.Status.ClusterWide.Health.NodeCounts.Registered; n.Total != 3 || n.Ready != 3 {
		t.Errorf("%+v", n)
	}
}
