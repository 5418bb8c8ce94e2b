package poolpriority

import (
	"testing"
)

func TestRequestsFit(t *testing.T) {
	free := requests{MilliCPU: 500, Memory: 100, Pods: 1}
	for _, tc := range []struct {
		name string
		pod  requests
		free requests
		want bool
	}{
		{"fits exactly", requests{500, 100, 1}, free, true},
		{"too much CPU", requests{501, 100, 1}, free, false},
		{"too much memory", requests{500, 101, 1}, free, false},
		{"no pod more", requests{0, 0, 1}, requests{500, 100, 0}, false},
		{"nothing asked of an overcommitted node", requests{0, 0, 1}, requests{-5, -5, 1}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.pod.fit(tc.free); got != tc.want {
				t.Errorf("fit() = %v, want %v", got, tc.want)
			}
		})
	}
}
