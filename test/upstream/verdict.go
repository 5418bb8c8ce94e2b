package main

import "slices"

// The numbers of pairs that are measured.
const (
	fewestPairs = 3
	mostPairs   = 5
)

// verdict judges the ratios of pairs by their signs: above 1 means better than the baseline. It is empty if more pairs
// are needed. Three pairs are enough if they agree and all lie outside 0.85 to 1.15. If five agree, the median must
// differ from 1 by more than 5 %.
func verdict(ratios []float64) string {
	if len(ratios) < fewestPairs {
		return ""
	}
	low, middle, high := slices.Min(ratios), median(ratios), slices.Max(ratios)
	switch {
	case len(ratios) < mostPairs && high < 0.85:
		return "clearly below"
	case len(ratios) < mostPairs && low > 1.15:
		return "clearly above"
	case len(ratios) < mostPairs:
		return ""
	case high < 1 && middle < 0.95:
		return "below"
	case low > 1 && middle > 1.05:
		return "above"
	}
	return "even"
}

// median returns the median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
