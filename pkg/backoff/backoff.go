// Package backoff doubles pauses. It keeps nothing: its callers count the failures, in an annotation or a ConfigMap for example.
package backoff

import "time"

// Pause returns the first pause, doubled so many times, but at most the limit.
func Pause(first time.Duration, times int, limit time.Duration) time.Duration {
	for ; times > 0 && first < limit; times-- {
		first *= 2
	}
	return min(first, limit)
}
