// Package backoff computes exponential pauses. The caller counts the failures.
package backoff

import "time"

// Pause returns the first pause, doubled the given number of times, but at most the limit.
func Pause(first time.Duration, times int, limit time.Duration) time.Duration {
	for ; times > 0 && first < limit; times-- {
		first *= 2
	}
	return min(first, limit)
}
