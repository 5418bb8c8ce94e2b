package gate

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestManyKinds: what is remembered is bounded.
func TestManyKinds(t *testing.T) {
	k := NewDeclines()
	now := time.Now()
	d := &Decision{Regular: []Verdict{{Open: true, Declined: map[string]time.Time{DeclineKey(0, "a"): now}}}}
	for i := range 2*maxKeys + 1 {
		if !k.Learn(fmt.Sprint(i), d) || len(k.byKey) > maxKeys {
			t.Fatalf("kind %d: %d are remembered", i, len(k.byKey))
		}
	}
	if k.Learn("0", &Decision{Regular: []Verdict{{}}}) || k.Learn("", d) {
		t.Error("something is learnt of nothing")
	}
	if got := k.Declined(KeyDigest(fmt.Sprint(2*maxKeys)), DeclineKey(0, "a"), "p", now); !got.Equal(now) {
		t.Errorf("of the last kind, %v is known", got)
	}
	if !k.Declined("", DeclineKey(0, "a"), "p", now).IsZero() || !k.Declined(KeyDigest("unknown"), DeclineKey(0, "a"), "p", now).IsZero() {
		t.Error("something is known of no kind")
	}
}

// TestLossOfCredit: a pod's loss of credit holds for others, and for the next leader. One pod at a time tests it, whatever
// is learnt of declines. After an hour it is forgotten.
func TestLossOfCredit(t *testing.T) {
	credit, decline := creditKey("user", "g"), DeclineKey(0, "g")
	learn := func(k *Declines, name string, at time.Time) bool {
		return k.Learn("kind", &Decision{Regular: []Verdict{{Declined: map[string]time.Time{name: at}}}})
	}
	first := NewDeclines()
	if !learn(first, credit, now) || !learn(first, decline, now) || learn(first, credit, now) {
		t.Error("what is new is not, or what is known is new")
	}
	k := NewDeclines()
	k.Restore(map[string]Decline{tableOf(KeyDigest("kind"), credit): {}}) // written by a user
	k.Restore(first.Remembered(10))
	if !k.Declined(KeyDigest("kind"), decline, "a", now).IsZero() {
		t.Error("a decline is restored")
	}
	g := &nodegroups.Group{GroupStatus: nodegroups.GroupStatus{Name: "g"}}
	later := now.Add(TrialAfter + time.Second)
	believes := func(pod types.UID, at time.Time) bool {
		published := Believed(k.Remembered(10), KeyDigest("kind"), credit, pod, at)
		got := k.Declined(KeyDigest("kind"), credit, pod, at)
		if pod != "a" && !published.Equal(got) { // a is about to become the trial
			t.Errorf("pod %s at %v: who reads what is published believes %v, want %v", pod, at, published, got)
		}
		return !got.IsZero()
	}
	if !believes("a", later.Add(-time.Second)) || believes("a", later) || !believes("b", later) {
		t.Error("not one pod tests the loss")
	}
	if learn(k, decline, later); believes("a", later) || !believes("b", later) {
		t.Error("a decline ends the test")
	}
	if learn(k, credit, now); believes("a", later) {
		t.Error("a pod without credit that is still pending ends the test")
	}
	if long := later.Add(TrialLimit); k.Declined(KeyDigest("kind"), decline, "c", long.Add(TrialAfter)).IsZero() == k.Declined(KeyDigest("kind"), decline, "d", long.Add(TrialAfter)).IsZero() {
		t.Error("not one pod tests the decline")
	} else if !k.Declined(KeyDigest("kind"), decline, "d", long.Add(TrialAfter+TrialLimit+time.Second)).IsZero() {
		t.Error("a trial that does not end is not replaced")
	}
	if k.Forget("a"); believes("b", later) {
		t.Error("after the end of the trial, no other pod tests the loss")
	}
	if learn(k, credit, later); !believes("b", later) || !k.NotServing(later)("user", g) || k.NotServing(later)("system", g) {
		t.Error("the trial's own loss does not count")
	}
	if k.NotServing(later.Add(creditMemory))("user", g); believes("c", later.Add(time.Second)) || !k.Known() {
		t.Error("it is not forgotten, or the decline is")
	}
}
