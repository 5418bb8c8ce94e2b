package main

import "testing"

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		name   string
		ratios []float64
		want   string
	}{
		{"two pairs are too few", []float64{2, 2}, ""},
		{"three clear pairs", []float64{1.2, 1.5, 1.16}, "clearly above"},
		{"three clear pairs, worse", []float64{0.5, 0.84, 0.7}, "clearly below"},
		{"three that disagree", []float64{1.5, 0.7, 1.6}, ""},
		{"three of which one is close", []float64{1.5, 1.15, 1.6}, ""},
		{"three of which one is close, worse", []float64{0.5, 0.85, 0.6}, ""},
		{"four that are close", []float64{1.1, 1.1, 1.1, 1.1}, ""},
		{"five that agree", []float64{1.01, 1.06, 1.1, 1.02, 1.3}, "above"},
		{"five that agree, worse", []float64{0.99, 0.94, 0.9, 0.98, 0.7}, "below"},
		{"five that agree, and differ by 5 %", []float64{1.01, 1.05, 1.1, 1.02, 1.3}, "even"},
		{"five that agree, and differ by 5 %, worse", []float64{0.99, 0.95, 0.9, 0.98, 0.7}, "even"},
		{"five, of which one disagrees", []float64{1.5, 1.5, 1.5, 1.5, 0.99}, "even"},
		{"five, of which one is equal", []float64{0.5, 0.5, 0.5, 0.5, 1}, "even"},
		{"six that agree", []float64{0.9, 0.9, 0.9, 0.9, 0.9, 0.9}, "below"},
	} {
		if got := verdict(test.ratios); got != test.want {
			t.Errorf("%s: verdict(%v) is %q, want %q", test.name, test.ratios, got, test.want)
		}
	}
}
