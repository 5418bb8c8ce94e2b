package clusterautoscaler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestarts: a tracker that takes over returns the same states as the one before would have.
func TestRestarts(t *testing.T) {
	const user = "aks-userpool-123-vmss"
	type moment struct {
		at      time.Duration
		cm      *corev1.ConfigMap // nil: missing
		nodes   string            // the nodes' names, each a letter
		restart bool              // a new tracker takes over
		same    bool              // the status has not been written since the moment before
		want    string            // the code of the group's reason
	}
	health := func(health, transition, group string) *corev1.ConfigMap {
		cm := running(group)
		cm.Data[StatusKey] += fmt.Sprintf("clusterWide: {health: {status: %s, lastTransitionTime: %q}}\n", health, transition)
		return cm
	}
	for _, tc := range []struct {
		name    string
		moments []moment
	}{
		{"a backoff in a status that nobody writes any more is not seen again", []moment{
			{at: 0, cm: running(group(user, 1, 1, 3, inBackoff)), nodes: "a", want: "BackingOff"},
			{at: 2 * time.Minute, cm: running(group(user, 1, 1, 3, inBackoff)), nodes: "a", same: true, restart: true, want: "Backoff"},
			{at: 150 * time.Second, cm: running(group(user, 1, 1, 3)), nodes: "a", want: "Backoff"},
			{at: 5 * time.Minute, cm: running(group(user, 1, 1, 3)), nodes: "a", want: "BelowMaxSize"},
		}},
		{"a cluster that is healthy again has no other autoscaler", []moment{
			{at: 0, cm: health("Healthy", "a", group(user, 1, 1, 3, inBackoff)), nodes: "a", want: "BackingOff"},
			{at: 2 * time.Minute, cm: health("Healthy", "a", group(user, 1, 1, 3, inBackoff)), nodes: "a", want: "Backoff"},
			{at: 3 * time.Minute, cm: health("Unhealthy", "b", group(user, 1, 1, 3, inBackoff)), nodes: "a", want: "ClusterUnhealthy"},
			{at: 4 * time.Minute, cm: health("Healthy", "c", group(user, 1, 1, 3)), nodes: "a", restart: true, want: "Backoff"},
		}},
		{"nodes that were ordered are given no more time because the status is away", []moment{
			{at: 0, cm: running(group(user, 3, 1, 3)), nodes: "a", want: "Provisioning"},
			{at: 10 * time.Minute, nodes: "a", want: "StatusMissing"},
			{at: 11 * time.Minute, nodes: "a", restart: true, want: "StatusMissing"},
			{at: 12 * time.Minute, cm: running(group(user, 3, 1, 3)), nodes: "a", want: "Provisioning"},
			{at: 15 * time.Minute, cm: running(group(user, 3, 1, 3)), nodes: "a", want: "NodesMissing"},
		}},
		{"a node that went while the status was away is expected again, as by the autoscaler", []moment{
			{at: 0, cm: running(group(user, 2, 2, 3)), nodes: "ab", want: "BelowMaxSize"},
			{at: time.Minute, nodes: "ab", want: "StatusMissing"},
			{at: 14 * time.Minute, nodes: "ab", restart: true, want: "StatusMissing"},
			{at: 15 * time.Minute, cm: running(group(user, 2, 1, 3)), nodes: "a", want: "Provisioning"},
		}},
		{"a node that went before is known to be gone for as long", []moment{
			{at: 0, cm: running(group(user, 3, 3, 3)), nodes: "abc", want: "AtMaxSize"},
			{at: 5 * time.Second, cm: running(group(user, 3, 3, 3)), same: true, nodes: "ab", want: "StatusBehind"},
			{at: 10 * time.Second, cm: running(group(user, 3, 3, 3)), nodes: "ab", want: "StatusBehind"},
			{at: 15 * time.Second, cm: running(group(user, 3, 3, 3)), same: true, nodes: "ab", restart: true, want: "StatusBehind"},
			{at: 20 * time.Second, cm: running(group(user, 3, 3, 3)), nodes: "ab", want: "AtMaxSize"},
		}},
		{"until the target falls", []moment{
			{at: 0, cm: running(group(user, 3, 3, 3)), nodes: "abc", want: "AtMaxSize"},
			{at: 5 * time.Second, cm: running(group(user, 3, 3, 3)), same: true, nodes: "ab", want: "StatusBehind"},
			{at: 15 * time.Second, cm: running(group(user, 2, 2, 2)), nodes: "ab", restart: true, want: "AtMaxSize"},
		}},
		{"one that went while nobody looked is missed, although another came", []moment{
			{at: 0, cm: running(group(user, 3, 3, 3)), nodes: "abc", want: "AtMaxSize"},
			{at: 5 * time.Second, cm: running(group(user, 3, 3, 3)), same: true, nodes: "acd", restart: true, want: "StatusBehind"},
			{at: 10 * time.Second, cm: running(group(user, 3, 3, 3)), nodes: "acd", want: "StatusBehind"},
			{at: 20 * time.Second, cm: running(group(user, 3, 3, 3)), nodes: "acd", want: "AtMaxSize"},
		}},
		{"one that only came has replaced none", []moment{
			{at: 0, cm: running(group(user, 3, 3, 3)), nodes: "abc", want: "AtMaxSize"},
			{at: 5 * time.Second, cm: running(group(user, 3, 3, 3)), same: true, nodes: "abcd", restart: true, want: "AtMaxSize"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			for i, m := range tc.moments {
				now := epoch.Add(m.at)
				if m.restart {
					tracker = again(t, tracker, now)
				}
				if m.cm != nil {
					stamp := i
					for k := i; tc.moments[k].same; k-- {
						stamp--
					}
					m.cm.Annotations = map[string]string{LastUpdatedAnnotation: fmt.Sprint(stamp)}
				}
				_ = tracker.Observe(m.cm, now)
				var nodes []*corev1.Node
				for _, name := range m.nodes {
					nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(name), Labels: map[string]string{"agentpool": "userpool"},
						CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(name-'z') * time.Minute))},
						Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
				}
				source := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}
				tracker.ObserveNodes([]OwnedGroups{{Source: source, Nodes: nodes}}, nodes, now)
				if got := source.Status(nodes, now); got.Reason.Code != m.want {
					t.Errorf("moment %d: %s %s (%s), want %s", i, got.State, got.Reason.Code, got.Reason.Detail, m.want)
				}
			}
		})
	}
}
