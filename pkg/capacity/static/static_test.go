package static

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/capacity"
)

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name   string
		source capacity.Source
		nodes  int
		want   capacity.State
	}{
		{"no nodes", MaxNodes(2), 0, capacity.CanGrow},
		{"below the maximum", MaxNodes(2), 1, capacity.CanGrow},
		{"at the maximum", MaxNodes(2), 2, capacity.Full},
		{"above the maximum", MaxNodes(2), 3, capacity.Full},
		{"fixed without nodes", Fixed{}, 0, capacity.Full},
		{"fixed with nodes", Fixed{}, 5, capacity.Full},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.source.Judge(make([]*corev1.Node, tc.nodes), time.Time{})
			if got.State != tc.want || got.Reason.Code == "" || got.Reason.Sentence == "" {
				t.Errorf("Judge() = %+v, want %s with a reason", got, tc.want)
			}
			if !got.Until.IsZero() {
				t.Errorf("Until = %v: only an event changes the number of nodes", got.Until)
			}
		})
	}
}
