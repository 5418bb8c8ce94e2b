package gate

import (
	"fmt"
	"testing"
	"time"
)

// TestManyKinds: what is remembered is bounded.
func TestManyKinds(t *testing.T) {
	k := NewDeclines()
	now := time.Now()
	d := &Decision{Regular: []Verdict{{Open: true, Declined: []string{DeclineKey(0, "a")}}}}
	for i := range 2*maxKeys + 1 {
		if !k.Learn(fmt.Sprint(i), d, now) || len(k.byKey) > maxKeys {
			t.Fatalf("kind %d: %d are remembered", i, len(k.byKey))
		}
	}
	if k.Learn("0", &Decision{Regular: []Verdict{{}}}, now) || k.Learn("", d, now) {
		t.Error("something is learnt of nothing")
	}
	if got := k.Declined(fmt.Sprint(2*maxKeys), "p", now); !got[DeclineKey(0, "a")].Equal(now) {
		t.Errorf("of the last kind, %v is known", got)
	}
	if k.Declined("", "p", now) != nil || k.Declined("unknown", "p", now) != nil {
		t.Error("something is known of no kind")
	}
}
