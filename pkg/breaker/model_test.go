package breaker

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

var histories = flag.Int("histories", 1500, "how many random histories are compared")

// step is a time at which one pod may have changed. The states are compared after each step.
type step struct {
	at   time.Time
	pod  *Pod      // the changed pod
	gone types.UID // the pod that is gone
}

// history has all steps. For each step, it computes the expected state from all steps up to it.
type history struct {
	rules Rules
	steps []step
	late  map[types.UID]int           // the step at which a pod was found to be late, or -1; computed once for each pod
	may   map[types.UID]time.Duration // how long a pod may take to start
	// expired is how often a half-open pool opened because its failures were too old.
	expired int
}

// seen returns the pod's last state up to step k, the step at which it was first seen, and whether it is gone at step
// k.
func (h *history) seen(uid types.UID, k int) (p Pod, first int, gone bool) {
	first = -1
	for i := 0; i <= k; i++ {
		if s := h.steps[i]; s.pod != nil && s.pod.UID == uid {
			p, gone = *s.pod, false
			if first < 0 {
				first = i
			}
		} else if s.gone == uid {
			gone = true
		}
	}
	return p, first, gone
}

func (h *history) uids(k int) []types.UID {
	var all []types.UID
	known := map[types.UID]bool{}
	for i := 0; i <= k; i++ {
		if s := h.steps[i]; s.pod != nil && !known[s.pod.UID] {
			known[s.pod.UID] = true
			all = append(all, s.pod.UID)
		}
	}
	return all
}

// accepted returns the latest binding time of the pods that had started by step k. newest returns that of all pods that
// had been seen.
func (h *history) accepted(k int) (t time.Time) {
	for _, s := range h.steps[:k+1] {
		if s.pod != nil && s.pod.Started {
			t = latest(t, s.pod.Bound)
		}
	}
	return t
}

func (h *history) newest(k int) (t time.Time) {
	for _, s := range h.steps[:k+1] {
		if s.pod != nil {
			t = latest(t, s.pod.Bound)
		}
	}
	return t
}

// slowness returns how many times in a row pods of the owner had been late before step k.
func (h *history) slowness(owner types.UID, k int) int {
	n := 0
	for i := range k {
		if s := h.steps[i]; s.pod != nil && s.pod.Owner == owner && s.pod.Started {
			if before, _, _ := h.seen(s.pod.UID, i-1); !before.Started && s.at.Before(s.pod.Bound.Add(h.rules.StartWithin)) {
				n = 0
			}
		}
		for _, uid := range h.uids(i) {
			if p, first, _ := h.seen(uid, i); p.Owner == owner && h.lateSince(uid) == i {
				n = max(n, h.slowness(owner, first)+1)
			}
		}
	}
	return n
}

// within returns how long the pod may take to start.
func (h *history) within(uid types.UID) time.Duration {
	if _, known := h.may[uid]; !known {
		p, first, _ := h.seen(uid, len(h.steps)-1)
		h.may[uid] = h.rules.StartWithin << min(h.slowness(p.Owner, first), 4)
	}
	return h.may[uid]
}

// lateSince returns the step at which the pod was found to be late, or -1.
func (h *history) lateSince(uid types.UID) int {
	if _, known := h.late[uid]; !known {
		h.late[uid] = h.findLate(uid)
	}
	return h.late[uid]
}

func (h *history) findLate(uid types.UID) int {
	pod, first, _ := h.seen(uid, len(h.steps)-1)
	for i := first; i < len(h.steps) && h.rules.StartWithin > 0 && !pod.Foreign; i++ {
		p, _, gone := h.seen(uid, i)
		if gone || p.Started || p.Refusal != nil {
			return -1
		}
		if !h.steps[i].at.Before(p.Bound.Add(h.within(uid))) {
			return i
		}
	}
	return -1
}

// failures returns the failures that count at step k.
func (h *history) failures(k int) []Failure {
	var all []Failure
	for _, uid := range h.uids(k) {
		p, first, _ := h.seen(uid, k)
		if p.Started || p.Bound.Before(h.accepted(k)) {
			continue
		}
		f := Failure{UID: uid, Namespace: p.Namespace, Bound: p.Bound}
		for i := first; i <= k; i++ {
			q, _, _ := h.seen(uid, i)
			if q.Refusal != nil && (q.Refusal.Cause == refusal.PoolError || q.Refusal.Cause == refusal.Unknown && !p.Foreign) {
				f.Cause, f.At = q.Refusal.Cause, h.steps[i].at
				break
			}
			if h.lateSince(uid) == i {
				f.At = p.Bound.Add(h.within(uid))
			}
		}
		if !f.At.IsZero() && (p.Refusal == nil || p.Refusal.Cause != refusal.PodError) && h.steps[k].at.Sub(f.At) < h.rules.Evidence {
			all = append(all, f)
		}
	}
	return all
}

// pacing returns the expected pacing of the owner at step k. since is the step at which the present leader started, and
// state is the pool's state at step k.
func (h *history) pacing(owner types.UID, k, since int, state State) *Pacing {
	var p Pacing
	var known OwnerPacing
	now, began := h.steps[k].at, h.steps[since].at
	for _, uid := range h.uids(k) {
		pod, first, gone := h.seen(uid, k)
		if !gone && !pod.Foreign {
			p.Used = p.Used.Plus(Size{1, pod.MilliCPU})
		}
		refused := false
		for i := first; i <= k; i++ {
			before, _, _ := h.seen(uid, i-1)
			q, _, _ := h.seen(uid, i)
			refused = refused || q.Refusal != nil || h.lateSince(uid) == i
			if i >= since && i > first && q.Started && !before.Started {
				p.TrustedUntil = latest(p.TrustedUntil, h.steps[i].at.Add(h.rules.Trust))
			}
		}
		if !pod.CountsFailures || pod.Owner != owner {
			continue
		}
		if !gone && pod.mayStart() {
			known.Starting = append(known.Starting, latest(h.steps[first].at, began).Add(h.rules.Answer))
		}
		if forgotten := pod.Bound.Add(h.rules.Forget); refused && !pod.Started && now.Before(forgotten) {
			known.Refused = append(known.Refused, forgotten)
		}
	}
	if len(known.Starting)+len(known.Refused) > 0 {
		slices.SortFunc(known.Starting, time.Time.Compare)
		slices.SortFunc(known.Refused, time.Time.Compare)
		p.Owners = map[types.UID]OwnerPacing{owner: known}
	}
	p.Peak, p.Recent = h.peaks(k, since)
	if state != Open || len(h.failures(k)) > 0 {
		p.TrustedUntil = time.Time{}
	}
	return &p
}

// peaks returns the expected Peak and Recent at step k. Both count from the step since, at which the leader started, or
// from the last pool error. Recent also counts anew when a pod starts after a long time without a start.
func (h *history) peaks(k, since int) (peak, recent Size) {
	var lastStart time.Time
	for i := since; i <= k; i++ {
		running := h.running(i)
		peak, recent = peak.max(running), recent.max(running)
		pod := h.steps[i].pod
		if pod == nil {
			continue
		}
		before, first, _ := h.seen(pod.UID, i-1)
		switch {
		case pod.Refusal != nil && pod.Refusal.Cause == refusal.PoolError && before.Refusal == nil:
			peak, recent = running, running
		case pod.Started && !before.Started && first >= 0:
			if h.steps[i].at.Sub(lastStart) >= h.rules.Trust {
				recent = running
			}
			lastStart = h.steps[i].at
		}
	}
	return peak, recent
}

// running returns the sum of the pods that had started and were not gone at step k.
func (h *history) running(k int) (sum Size) {
	for _, uid := range h.uids(k) {
		if p, _, gone := h.seen(uid, k); !gone && p.Started && !p.Foreign {
			sum = sum.Plus(Size{1, p.MilliCPU})
		}
	}
	return sum
}

// closing is how often the pool was closed for a namespace, and when the last time ends.
type closing struct {
	times         int
	newest, until time.Time
}

// verdict is the expected state of the pool after a step.
type verdict struct {
	state State
	until time.Time
}

// verdicts returns the expected state after each step, by the rules in the documentation.
func (h *history) verdicts() []verdict {
	var all []verdict
	state, rest := Open, time.Duration(0)
	var until, closed, probed, shut time.Time
	closings := map[string]closing{} // by namespace
	closeFor := func(k, least int, failures []Failure, match func(Failure) bool) {
		counts := map[string]int{}
		for _, f := range failures {
			if match(f) && f.Bound.After(closings[f.Namespace].newest) {
				counts[f.Namespace]++
			}
		}
		for namespace, n := range counts {
			if c := closings[namespace]; n >= least || c.times > 0 {
				pause := min(h.rules.FirstBackoff<<c.times, h.rules.MaxBackoff)
				closings[namespace] = closing{c.times + 1, h.newest(k), h.steps[k].at.Add(pause)}
			}
		}
	}
	for k, s := range h.steps {
		if s.pod != nil && s.pod.Started && s.pod.Bound.After(closings[s.pod.Namespace].newest) {
			delete(closings, s.pod.Namespace)
		}
		maps.DeleteFunc(closings, func(_ string, c closing) bool { return s.at.Sub(c.until) >= h.rules.Evidence })
		failures := h.failures(k)
		ofPool, alone, namespaces, ofProbe, probes := 0, false, map[string]bool{}, false, map[string]bool{}
		for _, f := range failures {
			counts := f.Cause == refusal.PoolError || closings[f.Namespace].times == 0
			if counts {
				namespaces[f.Namespace] = true
			}
			if f.Cause == refusal.PoolError {
				ofPool++
				_, _, gone := h.seen(f.UID, k)
				alone = alone || !gone && s.at.Sub(f.At) >= h.rules.Alone
			}
			if f.Bound.After(probed) {
				if counts {
					probes[f.Namespace] = true
				}
				ofProbe = ofProbe || f.Cause == refusal.PoolError || len(probes) > 1
			}
		}
		if state != Open && h.accepted(k).After(closed.Add(h.rules.InFlight)) {
			state = Open
		}
		switch {
		case state == Open && (ofPool > 1 || alone || len(namespaces) > 1):
			rest = h.rules.FirstBackoff
			state, until, closed, shut = Refusing, s.at.Add(rest), h.newest(k), s.at
			closeFor(k, 1, failures, func(f Failure) bool { return f.Cause != refusal.PoolError })
		case state == Open:
			closeFor(k, 2, failures, func(Failure) bool { return true })
		case state == Refusing && !s.at.Before(until):
			state, probed = HalfOpen, h.newest(k)
		case state == HalfOpen && ofProbe:
			rest = min(2*rest, h.rules.MaxBackoff)
			state, until, closed, shut = Refusing, s.at.Add(rest), h.newest(k), s.at
		case state == HalfOpen && len(failures) == 0 && s.at.Sub(shut) >= h.rules.Evidence:
			state = Open
			h.expired++
		case state == HalfOpen:
			closeFor(k, 1, failures, func(f Failure) bool { return f.Bound.After(probed) })
		}
		v := verdict{state: state}
		if state == Refusing {
			v.until = until
		}
		all = append(all, v)
	}
	return all
}

// randomHistory returns a history in which pods are bound, start, are refused, and go. If ends is false, no pod goes.
func randomHistory(r *rand.Rand, rules Rules, length int, ends bool) *history {
	h := &history{rules: rules, late: map[types.UID]int{}, may: map[types.UID]time.Duration{}}
	at, pods, number := begin, []*Pod{}, 0
	for range length {
		at = at.Add(time.Duration(r.IntN(60)) * []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[r.IntN(3)])
		s := step{at: at}
		switch n := r.IntN(10); {
		case n < 4 || len(pods) == 0:
			number++
			p := &Pod{UID: types.UID(fmt.Sprintf("%03d", number)), Namespace: []string{"a", "a", "a", "b"}[r.IntN(4)], Bound: at.Add(-time.Duration(r.IntN(3)) * time.Second).Truncate(time.Second)}
			p.Owner = types.UID(p.Namespace + []string{"/web", "/api"}[r.IntN(2)])
			p.TemplateKey = string(p.Owner)
			p.CountsFailures, p.MilliCPU, p.Foreign = r.IntN(2) == 0, int64(100*(1+r.IntN(3))), number%5 == 0
			pods = append(pods, p)
			s.pod = p
		case n < 9:
			p := *pods[r.IntN(len(pods))]
			switch {
			case p.Started || p.Refusal != nil:
			case r.IntN(3) == 0:
				p.Started = true
			default:
				p.Refusal = &refusal.Refusal{Cause: []refusal.Cause{refusal.PoolError, refusal.PoolError, refusal.Unknown, refusal.PodError, refusal.NeitherError}[r.IntN(5)], Code: "Code"}
			}
			for i := range pods {
				if pods[i].UID == p.UID {
					pods[i] = &p
				}
			}
			s.pod = &p
		case ends:
			i := r.IntN(len(pods))
			s.gone = pods[i].UID
			pods = append(pods[:i:i], pods[i+1:]...)
		}
		h.steps = append(h.steps, s)
	}
	return h
}

// TestAgainstTheWholeHistory compares a Breaker, at each step of random histories, with a model that computes the state
// from all steps. In every other history the leader changes, and no pod goes or is late. The state that a leader hands
// on must then give the same results as the whole history.
func TestAgainstTheWholeHistory(t *testing.T) {
	n := *histories
	if testing.Short() {
		n /= 10
	}
	states, expired, paced := map[State]int{}, 0, pacingSeen{}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 16))
		restarts := seed%2 == 1
		rules := Rules{StartWithin: 3 * time.Minute, Alone: 2 * time.Minute, Evidence: 20 * time.Minute, FirstBackoff: time.Minute, MaxBackoff: 5 * time.Minute, InFlight: 5 * time.Second, Template: 24 * time.Hour, Curable: 10 * time.Minute,
			Answer: 10 * time.Second, Trust: 2 * time.Minute, Forget: 30 * time.Minute}
		if restarts {
			rules.StartWithin = 0
		}
		h := randomHistory(r, rules, 40, !restarts)
		want := h.verdicts()
		expired += h.expired
		breaker, there, since := New(rules), map[types.UID]Pod{}, 0
		for k, s := range h.steps {
			if restarts && r.IntN(5) == 0 {
				breaker, since = successor(t, breaker, there, s.at), k
			}
			if s.pod != nil {
				there[s.pod.UID] = *s.pod
				breaker.See(*s.pod, s.at)
			} else if s.gone != "" {
				delete(there, s.gone)
				breaker.Gone(s.gone)
			}
			j := breaker.Status(s.at)
			states[j.State]++
			if got := (verdict{j.State, j.Until}); got.state != want[k].state || !got.until.Equal(want[k].until) {
				t.Fatalf("seed %d, step %d, %v after the begin: %v, want %v\nfailures %+v", seed, k, s.at.Sub(begin), got, want[k], h.failures(k))
			}
			if r.IntN(30) == 0 { // only sometimes, because the model's pacing takes long
				owner := types.UID([]string{"a/web", "a/api", "b/web", "b/api"}[r.IntN(4)])
				pacing := breaker.Pacing(owner, nil, s.at)
				if diff := cmp.Diff(h.pacing(owner, k, since, want[k].state), pacing, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("seed %d, step %d, %v after the begin: the pacing of %s (-want,+got):\n%s", seed, k, s.at.Sub(begin), owner, diff)
				}
				if diff := cmp.Diff(pacing.Owners[owner], j.Pacing.Owners[owner], cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("seed %d, step %d: the pacing of %s by the judgement (-asked,+judged):\n%s", seed, k, owner, diff)
				}
				paced.count(pacing, owner)
			}
			if again := breaker.Status(s.at); again.State != j.State || !again.Until.Equal(j.Until) || !again.Next.IsZero() && !again.Next.After(s.at) {
				t.Fatalf("seed %d, step %d: judged again it is %+v, was %+v", seed, k, again, j)
			}
		}
	}
	for _, state := range []State{Open, Refusing, HalfOpen} {
		if states[state] < n {
			t.Errorf("the histories are too tame: %v", states)
		}
	}
	if least := n / 10; paced.trusted < least || paced.starting < least || paced.refused < least || paced.beyond < least {
		t.Errorf("the histories have too little pacing: %+v", paced)
	}
	if expired < n/20 {
		t.Errorf("of %d histories %d have a pool that nobody needed to try", n, expired)
	}
	t.Logf("judged %v, open without a probe %d times; pacing %+v", states, expired, paced)
}

// pacingSeen counts the kinds of pacing that were compared.
type pacingSeen struct{ trusted, starting, refused, beyond int }

func (s *pacingSeen) count(p *Pacing, owner types.UID) {
	for counter, is := range map[*int]bool{&s.trusted: !p.TrustedUntil.IsZero(), &s.starting: len(p.Owners[owner].Starting) > 0,
		&s.refused: len(p.Owners[owner].Refused) > 0, &s.beyond: !p.Used.Within(p.Peak)} {
		if is {
			*counter++
		}
	}
}

// successor returns the Breaker of the next leader.
func successor(t *testing.T, before *Breaker, there map[types.UID]Pod, now time.Time) *Breaker {
	data := must.Get(json.Marshal(before.Memory()))(t)
	var m Memory
	must.NoError(t, json.Unmarshal(data, &m))
	next := New(before.rules)
	next.Restore(m, now)
	pods := make([]Pod, 0, len(there))
	for _, pod := range there {
		pods = append(pods, pod)
	}
	next.SeeAll(pods, now, func(pod Pod, change Change) {
		if change.Refused != nil {
			t.Fatalf("the refusal of pod %s is news to the next leader", pod.UID)
		}
	})
	return next
}
