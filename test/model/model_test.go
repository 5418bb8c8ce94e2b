// Package model compares the gate with a deliberately naive statement of its rules (rules_test.go), over random histories of a cluster
// with its autoscaler (world_test.go). The statement keeps all that was to be seen and looks through all of it each time; the code under
// test (subject_test.go) is shown the same.
package model

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"poolpriority.dev/scheduler/pkg/capacity"
)

var (
	decisions = flag.Int("decisions", 200000, "decisions that TestGate compares")
	strict    = flag.Bool("strict", false, "concede nothing")
	seed      = flag.Uint64("seed", 0, "seed of TestGate; 0 takes a random one")
)

const (
	steps   = 120 // of a history
	perStep = 12  // decisions
)

// conceded is what the code is known to do otherwise than the rules say.
var conceded = concessions{
	arrivals: true, missing: true, unseenLosses: true, unseenPlaces: true, outages: true, silence: true, health: true, unlisted: true, borrowed: true,
	oneGroup: true, leaving: true, anyKind: true, firstNode: true, unknown: true,
}

func newHistory(w *world) *history {
	r := w.r
	h := &history{known: map[string]*group{}, settings: settings{staleAfter: 3 * time.Minute, unknownGrace: time.Duration(4+r.IntN(12)) * time.Minute,
		v2: r.IntN(2) == 0, maxPods: r.IntN(2) * 3}}
	if !*strict {
		h.concede = conceded
	}
	if r.IntN(3) == 0 {
		h.wait = time.Duration(1+r.IntN(1500)) * time.Second
	}
	if r.IntN(2) == 0 {
		h.hold = time.Duration(60+r.IntN(1800)) * time.Second
	}
	if r.IntN(3) == 0 {
		h.newPodDelay = time.Duration(r.IntN(120)) * time.Second
	}
	pools := []poolSettings{{name: "user", mode: "user"}, {name: "sys", mode: "system", agentPool: "sys"}, {name: "pat", mode: "pattern", pattern: "aks-pat-"}}
	for i := range pools {
		p := &pools[i]
		p.provision, p.backoff, p.decline = 15*time.Minute, 2*time.Minute, time.Minute
		if r.IntN(3) == 0 {
			p.provision, p.backoff, p.decline = time.Duration(2+r.IntN(14))*time.Minute, time.Duration(1+r.IntN(4))*time.Minute, time.Duration(10+r.IntN(200))*time.Second
		}
		if slices.ContainsFunc(w.groups, func(g *group) bool { return g.mode == p.mode }) {
			h.settings.pools = append(h.settings.pools, *p)
		}
	}
	for _, g := range w.groups {
		h.known[g.name] = g
	}
	return h
}

// counts are what the histories covered.
type counts struct {
	compared, wakeUps, restarts int
	states                      map[capacity.State]int
	whys                        map[string]int
}

// TestGate compares every decision, and checks that a held pod's wake-up is due no later than its gate opens by itself.
func TestGate(t *testing.T) {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d", s)
	r := rand.New(rand.NewPCG(s, 0))
	c := counts{states: map[capacity.State]int{}, whys: map[string]int{}}
	for c.compared < *decisions && !t.Failed() {
		w := newWorld(r)
		h := newHistory(w)
		play(t, w, h, newSubject(t, h), &c)
	}
	t.Logf("%d decisions, %d that open by themselves later, %d restarts", c.compared, c.wakeUps, c.restarts)
	t.Logf("groups by state: %v", c.states)
	t.Logf("decisions by reason: %v", c.whys)
}

// play goes through one history.
func play(t *testing.T, w *world, h *history, sub *subject, c *counts) {
	show := func() {
		h.see(w.look())
		sub.look(&h.looks[h.last()])
	}
	show()
	for step := 0; step < steps && !t.Failed(); step++ {
		from := w.now
		w.passTime()
		to := w.now
		// The subject looks when its view changes by itself, as its timer would have it.
		for until := sub.view.Until(); !until.IsZero() && until.Before(to); until = sub.view.Until() {
			if !until.After(from) {
				t.Fatalf("the view is due at once, again and again: %v", until)
			}
			w.now, from = until, until
			show()
		}
		w.now = to
		w.step()
		show()
		k := h.last()
		compareStates(t, h, sub, c)
		for range perStep {
			kind, burstPods := randomPod(w.r, w.now), w.r.IntN(5)
			want := h.decide(&kind, k, burstPods)
			burst := len(h.settings.pools)
			decision := sub.rule.Decide(kind.request(burst, burstPods), sub.view, w.now)
			c.compared++
			c.whys[want.why]++
			if got := decision.Burst[burst]; got.Open != want.open {
				t.Fatalf("step %d: the gate is open: %v (%+v), want %v (%s) for %s\n%+v\n%s", step, got.Open, got.Reason, want.open, want.why, kind.describe(w.now), decision.Regular, sub.describe(w.now)+h.describe(k))
			}
		}
	}
}

// compareStates compares what the view says of the groups.
func compareStates(t *testing.T, h *history, sub *subject, c *counts) {
	k := h.last()
	for _, s := range h.notes[k].seats {
		want := h.notes[k].states[s]
		c.states[want]++
		if s.group == "" {
			continue
		}
		if want != capacity.Unknown && slices.ContainsFunc(h.notes[k].starting, func(m starting) bool { return m.group == s.group }) {
			want = capacity.Growing
		}
		groups := sub.view.Pools[s.pool].Groups
		i := slices.IndexFunc(groups, func(g capacity.Group) bool { return g.Name == s.group })
		if want == capacity.Unknown && i < 0 {
			continue // it is one of those that the pool's nodes stand for
		}
		if i < 0 || groups[i].State != want {
			t.Fatalf("group %s of pool %d must be %s (%s)\n%s%s", s.group, s.pool, want, h.notes[k].whys[s], sub.describe(h.looks[k].at), h.describe(k))
		}
	}
}
