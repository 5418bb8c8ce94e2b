package breaker

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/refusal"
)

// TestEvictionsAreBounded: at most a thousand owners are remembered, each for at most a day.
func TestEvictionsAreBounded(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	b := New(NewRules(15 * time.Minute))
	for i := range maxOwners + 10 {
		uid := types.UID(fmt.Sprint(i))
		b.See(Pod{UID: uid, Owner: "of-" + uid, Bound: now, Refusal: &refusal.Refusal{Cause: refusal.NeitherError}}, now)
		lost := b.Lost(now)
		b.Evicted(&lost[i], now)
		now = now.Add(time.Second)
	}
	if n := len(b.evictions); n != maxOwners || b.evictions["of-9"].rounds != 0 || b.evictions["of-10"].rounds != 1 {
		t.Errorf("%d owners are remembered, want the last %d", n, maxOwners)
	}
	if b.Status(now.Add(24 * time.Hour)); len(b.evictions) > 0 {
		t.Errorf("%d owners are remembered after a day", len(b.evictions))
	}
}
