// Package model compares the gate with a deliberately naive model of its rules (rules_test.go), over random histories
// of a cluster and its autoscaler (world_test.go). The model keeps everything that was observed, and goes through all
// of it for each decision. The code under test (subject_test.go) observes the same.
package model

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/seed"
)

var (
	decisions = flag.Int("decisions", 200000, "decisions that TestGate compares")
)

const (
	steps   = 120 // the steps of a history
	perStep = 16  // decisions
)

func newHistory(w *world) *history {
	r := w.r
	h := &history{known: map[string]*group{}, settings: settings{staleAfter: []time.Duration{30 * time.Second, 3 * time.Minute, 3 * time.Minute}[r.IntN(3)], unknownGrace: time.Duration(4+r.IntN(12)) * time.Minute,
		v2: r.IntN(2) == 0}}
	if r.IntN(4) == 0 {
		h.maxPods = 3
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

// counts has what the histories covered.
type counts struct {
	compared, requeues, restarts int
	published                    int            // held pods that were also decided from the published View
	states                       map[string]int // groups, by state and reason
	statuses                     map[string]int // looks, by the kind of the status
	whys                         map[string]int // decisions, by the rule that made them
}

// covered lists the entries of counts that must not be zero.
var covered = struct{ states, statuses, whys []string }{
	[]string{"CanGrow BelowMax", "CanGrow BackingOff", "CanGrow UnhealthyRecently", "CanGrow Shrinking", "CanGrow StatusBehind", "Full AtMax", "Full Backoff", "Full Unhealthy",
		"Full NodesMissing", "Growing Provisioning", "Growing NodesStarting", "Unknown"},
	[]string{"missing", "garbage", "initializing", "unhealthy", "running", "stale", "another autoscaler"},
	[]string{"SelectedByPod", "Budget", "CanGrow: declineGrace", "CanGrow: four loops", "CanGrow: it does not want room", "CanGrow: priority", "CanGrow: ProvisioningRequest", "CanGrow: backing off", "Declined", "Full", "Growing",
		"HoldLimit", "Ineligible", "OptedOut", "OverriddenClosed", "OverriddenOpen", "FailureLimit", "RateLimited", "Starting", "Unknown", "UnknownTooLong", "WaitLimit"},
}

// TestGate compares all decisions with the model. It also checks that the requeue of a held pod is due no later than
// its gate opens without an event.
func TestGate(t *testing.T) {
	r := seed.New(t, 1)
	c := counts{states: map[string]int{}, statuses: map[string]int{}, whys: map[string]int{}}
	for c.compared < *decisions && !t.Failed() {
		w := newWorld(r)
		h := newHistory(w)
		play(t, w, h, newSubject(t, h), &c)
	}
	t.Logf("%d decisions, %d that open by themselves later, %d restarts; %d of held pods, by what is published", c.compared, c.requeues, c.restarts, c.published)
	t.Logf("groups: %v", c.states)
	t.Logf("statuses: %v", c.statuses)
	t.Logf("decisions: %v", c.whys)
	cover := func(counts map[string]int, all []string) {
		for _, what := range all {
			if counts[what] == 0 {
				t.Errorf("the histories do not cover %q", what)
			}
		}
	}
	cover(c.states, covered.states)
	cover(c.statuses, covered.statuses)
	cover(c.whys, covered.whys)
	if c.requeues == 0 || c.restarts == 0 {
		t.Error("the histories do not cover everything")
	}
}

// play runs one history.
func play(t *testing.T, w *world, h *history, sub *subject, c *counts) {
	show := func() {
		h.see(w.look())
		sub.look(&h.looks[h.last()])
	}
	show()
	ahead := w.r.IntN(steps)
	for step := 0; step < steps && !t.Failed(); step++ {
		from := w.now
		w.passTime()
		to := w.now
		// When the view changes without an event, the subject looks again, as the scheduler's timer makes it.
		for until := sub.view.Until(); !until.IsZero() && !until.After(to); until = sub.view.Until() {
			if !until.After(from) {
				t.Fatalf("the view is due at once, again and again: %v", until)
			}
			w.now, from = until, until
			show()
		}
		w.now = to
		if w.chance(4) && !h.isRefreshed() { // the view must be right until then, too
			compareStates(t, h.with(w.look()), sub, c)
		}
		if w.chance(40) {
			published := sub.publish(h.looks[h.last()].at)
			for range w.r.IntN(3) {
				w.step()
				w.now = w.now.Add(time.Duration(w.r.IntN(60)) * time.Second)
			}
			w.step()
			sub.restart(published, w.now)
			l := w.look()
			l.restarted = true
			h.see(l)
			sub.look(&h.looks[h.last()])
			c.restarts++
		} else {
			w.step()
			show()
		}
		compareStates(t, h, sub, c)
		for range perStep {
			pod := randomPod(w.r, w.now)
			compareDecisions(t, h, sub, &pod, w.r.IntN(5), c)
		}
		if step == ahead && !h.isRefreshed() {
			lookAhead(t, w, h, sub, c)
		}
	}
}

// compareDecisions compares the decisions of the model and of the gate for the pod, and returns both.
func compareDecisions(t *testing.T, h *history, sub *subject, pod *podKind, burstPods int, c *counts) (verdict, gate.Decision) {
	k, burst := h.last(), len(h.settings.pools)
	now := h.looks[k].at
	want := h.decide(pod, k, burstPods)
	request := pod.request(burst, burstPods)
	sub.paces(pod, burst, now)
	decision := sub.rule.Decide(request, sub.view, now)
	compareClass(t, sub, request, &decision, now)
	if c.compared%2 == 0 && c.published < *publications {
		c.published += sub.reader.compare(t, sub, request, &decision, now)
	}
	c.compared++
	c.whys[want.why]++
	if got := decision.Burst[burst]; got.Open != want.open {
		t.Fatalf("the gate is open: %v (%+v), want %v (%s) for %s\n%+v\n%s", got.Open, got.Reason, want.open, want.why, pod.describe(now), decision.Regular, sub.describe(now)+h.describe(k))
	}
	return want, decision
}

// compareClass compares the decision for the pod with the decision from the Assessment of another pod of its class
// (alike.View). It does so only if the present view has such an Assessment.
func compareClass(t *testing.T, sub *subject, request gate.Request, decision *gate.Decision, now time.Time) {
	if sub.assessed != sub.view {
		sub.assessed, sub.classes = sub.view, map[string]*gate.Assessment{}
	}
	class := alike.View(request.Pod)
	known := sub.classes[class]
	if known == nil {
		sub.classes[class] = sub.rule.Assess(request, sub.view)
		return
	}
	if diff := cmp.Diff(*decision, sub.rule.DecideFor(request, known, sub.view, now)); diff != "" {
		t.Fatalf("pods of a class are not alike (-by itself,+by another of the class):\n%s\n%s", diff, class)
	}
}

// compareStates compares the states of the groups in the view with the model.
func compareStates(t *testing.T, h *history, sub *subject, c *counts) {
	k := h.last()
	note := &h.notes[k]
	c.statuses[h.statusAt(k)]++
	if note.takeover {
		c.statuses["another autoscaler"]++
	}
	for _, s := range note.seats {
		want, why := note.states[s], note.whys[s]
		if want != nodegroups.Unknown && slices.Contains(note.starting, s) {
			if want != nodegroups.Growing {
				why = "NodesStarting"
			}
			want = nodegroups.Growing
		}
		c.states[strings.TrimSpace(string(want)+" "+why)]++
		groups := sub.view.Pools[s.pool].Groups
		i := slices.IndexFunc(groups, func(g nodegroups.Group) bool { return g.Name == s.group })
		if i < 0 && want == nodegroups.Unknown {
			continue // the group is now known from its nodes, which are old enough; the view has that after the next look
		}
		if i < 0 || groups[i].State != want {
			t.Fatalf("group %s of pool %d must be %s (%s)\n%s%s", s.group, s.pool, want, why, sub.describe(h.looks[k].at), h.describe(k))
		}
	}
}

// with returns a copy of the history with more looks.
func (h *history) with(looks ...look) *history {
	with := *h
	with.looks, with.notes = slices.Clip(h.looks), slices.Clip(h.notes)
	for _, l := range looks {
		with.see(l)
	}
	return &with
}

// isRefreshed reports whether a node has a taint that may be a startup taint. What is remembered of the node's group
// decides that, and it may change with the next look.
func (h *history) isRefreshed() bool {
	return slices.ContainsFunc(h.looks[h.last()].nodes, func(n node) bool { return n.startupTaint })
}

// statusAt returns the kind of the status at the look.
func (h *history) statusAt(k int) string {
	switch s := h.looks[k].status; {
	case s == nil:
		return "missing"
	case s.kind == "running" && !h.notes[k].believed:
		return "stale"
	default:
		return s.kind
	}
}

// lookAhead checks that the requeues of pods that are held now are due no later than their gates open, if nothing
// changes but the time.
func lookAhead(t *testing.T, w *world, h *history, sub *subject, c *counts) {
	type heldPod struct {
		pod       podKind
		burstPods int
		due       time.Time
	}
	k := h.last()
	now := h.looks[k].at
	var held []heldPod
	times := []time.Time{h.looks[k].override.until}
	for range 12 {
		pod, burstPods := randomPod(w.r, now), w.r.IntN(5)
		want, decision := compareDecisions(t, h, sub, &pod, burstPods, c)
		if want.open {
			continue
		}
		held = append(held, heldPod{pod, burstPods, nodegroups.Earliest(decision.Until(), sub.view.Until())})
		times = append(times, pod.since.Add(h.wait), pod.noRoom.Add(h.hold))
	}
	for d := 20 * time.Second; d < 20*time.Minute; d += 20 * time.Second {
		times = append(times, now.Add(d))
	}
	slices.SortFunc(times, time.Time.Compare)
	future := h.with()
	for _, at := range slices.Compact(times) {
		if !at.After(now) || at.Sub(now) > 20*time.Minute || len(held) == 0 {
			continue
		}
		l := h.looks[k]
		l.at, l.restarted = at, false
		future.see(l)
		held = slices.DeleteFunc(held, func(p heldPod) bool {
			want := future.decide(&p.pod, future.last(), p.burstPods)
			if !want.open {
				return false
			}
			c.requeues++
			if p.due.IsZero() || p.due.After(at) {
				t.Fatalf("the gate opens by itself (%s) after %v, and the requeue is due at %v, for %s\n%s%s", want.why, at.Sub(now), p.due, p.pod.describe(now), sub.describe(now), h.describe(k))
			}
			return true
		})
	}
}
