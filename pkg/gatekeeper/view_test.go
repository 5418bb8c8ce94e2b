package gatekeeper

import "testing"

// TestHeldIsToldSoon: pods that are held right after a report are told when the next report may be, and not only when something else happens.
func TestHeldIsToldSoon(t *testing.T) {
	w := newWorld(t)
	w.Lead()
	l := &w.loop
	l.takenOver, l.timer = true, w.clock.NewTimer(0)
	w.crowd(t, 2, 1)
	w.look(w.Context(), true)
	told := w.clock.Now()
	if !l.reported.Equal(told) {
		t.Fatalf("they are told at %v, want at once", l.reported)
	}
	w.clock.Step(reportInterval / 10)
	w.crowd(t, 3, 1)
	w.look(w.Context(), true)
	if wait := l.due.Sub(w.clock.Now()); !l.reported.Equal(told) || wait <= 0 || wait > reportInterval {
		t.Errorf("the others are told at %v, and the next look is in %v", l.reported, wait)
	}
}
