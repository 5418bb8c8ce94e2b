package backoff

import (
	"math"
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	for times, want := range map[int]time.Duration{-1: 10 * time.Second, 0: 10 * time.Second, 1: 20 * time.Second, 4: 160 * time.Second, 5: 5 * time.Minute, math.MaxInt: 5 * time.Minute} {
		if got := Pause(10*time.Second, times, 5*time.Minute); got != want {
			t.Errorf("doubled %d times: %v, want %v", times, got, want)
		}
	}
	if got := Pause(time.Hour, 0, time.Minute); got != time.Minute {
		t.Errorf("a first pause above the limit: %v", got)
	}
}
