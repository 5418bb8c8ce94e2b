package held

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
)

var (
	closed  = &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonCanGrow}}}
	opens   = &gate.Decision{Burst: []gate.Verdict{{Open: true}}}
	limited = &gate.Decision{Burst: []gate.Verdict{{Open: true, Limited: true}}}
)

// batch returns the sorted names of the next batch.
func (h *Pods) batch(now time.Time) string {
	var names []string
	pods, _ := h.NextBatch(now)
	for name := range pods {
		names = append(names, strings.TrimPrefix(name, "default/"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// newly returns, sorted, the pods that wait for their batch because of do, by namespace/name.
func (h *Pods) newly(do func()) (names []string) {
	waited := map[types.UID]bool{}
	for uid, entry := range h.pods {
		waited[uid] = entry.admitted.waits()
	}
	do()
	for uid, entry := range h.pods {
		if entry.admitted.waits() && !waited[uid] {
			names = append(names, nameOf(entry.pod))
		}
	}
	slices.Sort(names)
	return names
}

// sends is like newly, and all pods that wait for their batch are sent at once.
func (h *Pods) sends(now time.Time, do func()) []string {
	names := h.newly(do)
	for _, entry := range h.pods {
		if entry.admitted.waits() {
			entry.admitted.sent, entry.admitted.at = true, now
		}
	}
	return names
}

// decide makes the sync decide the same for all pods.
func (h *Pods) decide(decision *gate.Decision, now time.Time) {
	h.Reconsider(false, now, noNodes, func(*Candidate) gate.Decision { return *decision })
}

// admit makes the pod wait for its batch.
func (h *Pods) admit(p *v1.Pod, reason Reason, now time.Time) {
	h.admitLocked(h.pods[p.UID], admission{reason: reason, at: now})
}

// fails is a cycle of the pod that fails.
func (h *Pods) fails(p *v1.Pod, wantsRoom bool, now time.Time) {
	h.Failed(p, wantsRoom, now)
	h.Ended(p.UID, now)
}

// TestBatchesAreInOrder: pods of higher priority go first, and of pods with the same priority those that have waited
// for longer, whenever they were enqueued. The next batch goes when all pods of the last batch have been tried, or
// after batchTimeout. Before that, others get a third of the time that it took. Its size follows from how long the last batch took.
func TestBatchesAreInOrder(t *testing.T) {
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	add := func(prefix string, n int, priority int32) {
		for i := range n {
			p := pod(fmt.Sprintf("%s%04d", prefix, i))
			p.Spec.Priority = ptr.To(priority)
			h.Add(p, "", closed, nil, now.Add(time.Duration(i)*time.Millisecond))
			h.admit(p, PodChanged, now)
			h.admit(p, GateOpened, now) // the second time changes nothing
		}
	}
	add("low", 5000, 0)
	for i, tc := range []struct {
		added, tried int           // how many pods are enqueued, and how many pods of the last batch are tried, after took
		took         time.Duration // 0: the batch times out
		first, last  string        // of the batch; empty if there is none
		size         int
	}{
		{added: 50, first: "high0000", last: "high0024", size: firstBatch},
		{tried: 24, took: 10 * time.Millisecond},
		{tried: 1, took: 40 * time.Millisecond, first: "high0025", last: "high0049", size: 25}, // 50 ms for 25
		{tried: 25, took: 5 * time.Millisecond, first: "low0000", last: "low0249", size: 250},
		{tried: 250, took: 500 * time.Millisecond, first: "low0250", last: "low0274", size: 25},
		{tried: 25, took: time.Millisecond, first: "low0275", last: "low1274", size: maxBatch},
		{tried: 60, took: 600 * time.Millisecond},
		{added: 55, first: "high0000", last: "high0009", size: minBatch}, // 60 pods were tried in 600 ms, and then none
	} {
		if tc.added > 0 {
			add("high", tc.added, 10)
		}
		untried := slices.Sorted(maps.Keys(h.batches.untried))
		if now = now.Add(tc.took); tc.took == 0 {
			now = now.Add(batchTimeout)
		}
		for k, uid := range untried[:tc.tried] {
			if done, _ := h.Ended(uid, now); done != (k == len(untried)-1) {
				t.Errorf("step %d: after %d of %d pods: done is %v", i, k+1, len(untried), done)
			}
		}
		if len(untried) > 0 && tc.tried == len(untried) { // other pods get their turn first
			pods, again := h.NextBatch(now)
			if len(pods) > 0 || again.Sub(now) < tc.took/3 {
				t.Errorf("step %d: the next batch follows after %v", i, again.Sub(now))
			}
			now = again
		}
		got := strings.Fields(h.batch(now))
		if len(got) != tc.size || tc.size > 0 && (got[0] != tc.first || got[len(got)-1] != tc.last) {
			t.Fatalf("step %d: %v; want %+v", i, got, tc)
		}
	}
}

// TestBatchWaitsForBindings: the next batch waits while pods of the last one are being bound, and not for others.
func TestBatchWaitsForBindings(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		binds, ends bool
		after       time.Duration
		want        bool
	}{
		"it waits for a volume":  {false, false, 2 * time.Millisecond, true},
		"it is being bound":      {true, false, batchTimeout - 1, false},
		"its binding takes long": {true, false, batchTimeout, true},
		"it is bound":            {true, true, 0, true},
		"all have just failed":   {false, true, 0, false},
	} {
		h := New()
		for i := range firstBatch + 1 {
			h.Add(pod(fmt.Sprintf("p%02d", i)), "", closed, nil, now)
		}
		h.decide(opens, now)
		first := strings.Fields(h.batch(now))
		for _, name := range first {
			h.Tried(types.UID(name), now)
		}
		if tc.binds {
			h.Binding(types.UID(first[0]))
		}
		if tc.ends {
			h.Ended(types.UID(first[0]), now)
		}
		if got := h.batch(now.Add(tc.after)); (got != "") != tc.want {
			t.Errorf("%s: the next batch has %q", name, got)
		}
	}
}

// TestEnqueuedPodChanges: a pod that waits for a batch leaves the queue if it is gone, if it was tried meanwhile, or if
// its gates close. Reconsider admits it again later. A pod whose reason outlasts the gate leaves only if it is gone.
func TestEnqueuedPodChanges(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name         string
		meanwhile    func(h *Pods, p *v1.Pod)
		want, always string // the batch
		then         string // the batch after the gate has opened again
	}{
		{"nothing happens", func(*Pods, *v1.Pod) {}, "p", "p", ""},
		{"it is bound or deleted", func(h *Pods, p *v1.Pod) { h.Remove(p.UID) }, "", "", ""},
		{"it is held again", func(h *Pods, p *v1.Pod) { h.Add(p, "", closed, nil, now) }, "", "p", "p"},
		{"its gates close", func(h *Pods, _ *v1.Pod) { h.decide(closed, now) }, "", "p", "p"},
		{"its gates close and open", func(h *Pods, _ *v1.Pod) { h.decide(closed, now); h.decide(opens, now) }, "p", "p", ""},
		{"it is held again, and the gate opens", func(h *Pods, p *v1.Pod) { h.Add(p, "", closed, nil, now); h.decide(opens, now) }, "p", "p", ""},
		{"it fails, but is not held again", func(h *Pods, p *v1.Pod) { h.fails(p, true, now) }, "p", "p", ""},
	} {
		for _, always := range []bool{false, true} {
			h, p := New(), pod("p")
			h.Add(p, "", closed, nil, now)
			h.decide(opens, now)
			want := tc.want
			if always {
				want = tc.always
				h.admit(p, NodeHasRoom, now)
			}
			tc.meanwhile(h, p)
			if got := h.batch(now); got != want {
				t.Errorf("%s, always: %v: the batch has %q, want %q", tc.name, always, got, want)
			}
			h.Ended(p.UID, now)
			h.decide(opens, now)
			if got := h.batch(now); !always && got != tc.then {
				t.Errorf("%s: then the batch has %q, want %q", tc.name, got, tc.then)
			}
		}
	}
}

// TestSpares: when a gate opens for pods of a pool with a budget, a tenth more pods are requeued than the budget has
// room for. Their budget goes to other pods as soon as they have failed for another reason, or have left the queue.
func TestSpares(t *testing.T) {
	pools, now := poolsWithLimit(t, 20), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	h := New()
	for i := range 100 {
		h.Add(pod(fmt.Sprintf("p%02d", i)), "", closed, nil, now.Add(time.Duration(i)*time.Millisecond))
	}
	within := func(step, want string) {
		t.Helper()
		names := h.newly(func() {
			h.WithinBudgets(pools, usedBy(0), now)
		})
		got := fmt.Sprint(len(names))
		if len(names) > 0 {
			got = fmt.Sprintf("%d from %s to %s", len(names), names[0][len("default/"):], names[len(names)-1][len("default/"):])
		}
		if got != want {
			t.Errorf("%s: requeued are %s, want %s", step, got, want)
		}
	}
	within("the gate is closed", "0")
	h.decide(limited, now)
	within("the gate opens", "22 from p00 to p21")
	if by, _ := h.ByReason(); by["BudgetSpent"] != 78 {
		t.Errorf("reasons: %v", by)
	}
	now = now.Add(admissionTTL)
	within("they wait for a batch", "0")
	h.decide(closed, now)
	if got := h.batch(now); got != "" {
		t.Errorf("the gate is closed, and the batch has %s", got)
	}
	h.decide(limited, now)
	within("the gate opens again", "22 from p00 to p21")
	now = now.Add(admissionTTL) // a long queue of batches ends no reservation
	if got := strings.Fields(h.batch(now)); len(got) != 22 {
		t.Errorf("the batch has %v", got)
	}
	h.admit(pod("p00"), NodeHasRoom, now) // its budget stays reserved
	for i := range 5 {
		if _, budget := h.Ended(pod(fmt.Sprintf("p%02d", i)).UID, now); !budget {
			t.Errorf("no budget was reserved for pod %d", i)
		}
	}
	within("five pods fit no node", "3 from p22 to p24") // two spares have budget now
	h.Add(pod("p05"), "", &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonBudgetSpent}}}, nil, now)
	within("one is held again", "1 from p05 to p05")
}
