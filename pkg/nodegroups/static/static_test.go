package static

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		name   string
		source nodegroups.Source
		nodes  int
		want   nodegroups.State
		most   int
	}{
		{"no nodes", MaxNodes{Nodes: 2, MinWait: time.Hour}, 0, nodegroups.CanGrow, 2},
		{"below the maximum", MaxNodes{Nodes: 2, MinWait: time.Hour}, 1, nodegroups.CanGrow, 2},
		{"at the maximum", MaxNodes{Nodes: 2, MinWait: time.Hour}, 2, nodegroups.Full, 2},
		{"above the maximum", MaxNodes{Nodes: 2, MinWait: time.Hour}, 3, nodegroups.Full, 2},
		{"fixed without nodes", Fixed{}, 0, nodegroups.Full, 0},
		{"fixed with nodes", Fixed{}, 5, nodegroups.Full, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.source.Status(make([]*corev1.Node, tc.nodes), time.Time{})
			if got.State != tc.want || got.Reason.Code == "" || got.Reason.Sentence == "" {
				t.Errorf("Judge() = %+v, want %s with a reason", got, tc.want)
			}
			if g := got.Groups[0]; len(got.Groups) != 1 || g.State != tc.want || len(g.Members) != tc.nodes {
				t.Errorf("groups %+v, want one with the nodes", got.Groups)
			}
			if most := got.Groups[0].MaxNodes; most == nil || *most != tc.most {
				t.Errorf("at most %v nodes, want %d", most, tc.most)
			}
			if max, ok := tc.source.(MaxNodes); ok && (got.Groups[0].MinWait != max.MinWait || !got.HasScanned(time.Now())) {
				t.Errorf("minWait %v, counted %v: nobody tells loops, the minWait alone counts", got.Groups[0].MinWait, !got.Uncounted)
			}
			if !got.Until.IsZero() {
				t.Errorf("Until = %v: only an event changes the number of nodes", got.Until)
			}
		})
	}
}

// TestVersion: the version changes with the number of nodes and with the maximum.
func TestVersion(t *testing.T) {
	version := func(maximum int32, nodes int) string {
		return MaxNodes{Nodes: maximum}.Status(make([]*corev1.Node, nodes), time.Time{}).Groups[0].Version
	}
	if version(3, 1) == version(3, 2) || version(3, 1) == version(4, 1) {
		t.Errorf("versions %q, %q, %q", version(3, 1), version(3, 2), version(4, 1))
	}
}
