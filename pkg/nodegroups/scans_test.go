package nodegroups

import (
	"testing"
	"time"

	"poolpriority.dev/scheduler/test/seed"
)

// TestWaitedAt compares WaitedAt with a naive count of seconds.
func TestWaitedAt(t *testing.T) {
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	r := seed.New(t, 1)
	for range 2000 {
		var pauses []Outage
		paused := map[int]bool{}
		now := 0
		for range r.IntN(4) {
			from := now + r.IntN(20)
			to := from + r.IntN(20)
			pauses = OutageBegan(pauses, at(from))
			now = to + 1
			if now > 60 || r.IntN(6) == 0 {
				for s := from; s < 300; s++ {
					paused[s] = true
				}
				break // the outage does not end
			}
			pauses = OutageEnded(pauses, at(to))
			for s := from; s < to; s++ {
				paused[s] = true
			}
		}
		since, wait := r.IntN(60), 1+r.IntN(40)
		var want time.Time
		for s, waited := since, 0; s < 300; s++ {
			if !paused[s] {
				waited++
			}
			if waited == wait {
				want = at(s + 1)
				break
			}
		}
		a := Scans{Outages: pauses}
		if got := a.WaitedAt(at(since), time.Duration(wait)*time.Second); !got.Equal(want) {
			t.Fatalf("pauses %v, since %d, for %d: %v, want %v", pauses, since, wait, got, want)
		}
	}
}

// TestOutages: during an outage, no second one begins. Only the last maxOutages outages are kept. OutageBegan and
// OutageEnded do not change their arguments.
func TestOutages(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	first := OutageBegan(nil, at(1))
	if again := OutageBegan(first, at(2)); len(again) != 1 || again[0].From != at(1) {
		t.Errorf("a pause within a pause: %v", again)
	}
	if ended := OutageEnded(first, at(3)); !first[0].To.IsZero() || ended[0].To != at(3) {
		t.Errorf("%v, %v", first, ended)
	}
	var pauses []Outage
	for i := range 100 {
		pauses = OutageEnded(OutageBegan(pauses, at(2*i)), at(2*i+1))
	}
	if len(pauses) != maxOutages || pauses[len(pauses)-1].From != at(198) {
		t.Errorf("%d pauses, the last: %v", len(pauses), pauses[len(pauses)-1])
	}
}
