package held

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// syncChunk is how many held pods are read or written before the lock is released. This bounds how long scheduling
// cycles wait for the lock.
const syncChunk = 256

// Candidate is a copy of some fields of a held pod's entry. The entry and the copy share the Pod.
type Candidate struct {
	// AutoscalerKey and ViewKey are the pod's alike.Autoscaler and alike.View keys. Since has the pod's waiting times.
	// Wait is what the pod waits for instead of bursting.
	Pod                    *v1.Pod
	AutoscalerKey, ViewKey string
	Since                  published.Wait
	Wait                   gate.Wait

	entry    *heldPod
	version  int
	byLoop   bool
	decision gate.Decision
	room     []bool // by the pool's index, whether a node may take the pod if the gate is open; nil if that is not known
}

// Reconsider calls decide for every held pod, applies the decisions, and admits the pods for which the gate opens. With onlyNew, it calls decide only for pods
// that became held since the last sync. Scheduling cycles continue meanwhile. If a pod's entry changes before the
// decision for the pod is applied, Reconsider drops the decision. If a gate opens for a pod that no burst node suits, the
// pod is not admitted. burst returns the burst nodes.
func (h *Pods) Reconsider(onlyNew bool, now time.Time, burst func() map[string]*Space, decide func(c *Candidate) gate.Decision) Result {
	look := Result{held: h, now: now, quotas: quotas{}, burst: sync.OnceValue(burst), kinds: map[kindKey]*kind{}}
	var candidates []Candidate
	for uids := range slices.Chunk(h.toSync(onlyNew), syncChunk) {
		candidates = h.candidates(candidates[:0], uids, now)
		for i := range candidates {
			candidates[i].decision = decide(&candidates[i])
			look.findRoom(&candidates[i])
		}
		look.settle(candidates)
	}
	look.Next = nodegroups.Earliest(look.Next, h.admitByQuota(look.quotas, now))
	if onlyNew {
		look.Next = nodegroups.Earliest(look.Next, now.Add(retryWithoutCondition))
	}
	return look
}

// Queued is the part of a held pod's entry that matters beside other held pods.
type Queued struct {
	turn
	Pod                    *v1.Pod
	AutoscalerKey, ViewKey string
	// Waits is set if the pod waits for a node: no node is reserved for it or nominated to it, no gate is open for it
	// without regard to budgets, and it last failed because it lacks resources, at least waitsAfter ago.
	Waits bool
}

// waitsAfter is the age of a pod's last cycle or admission from which the pod counts as waiting. Until then, its condition or the node
// that the cycle nominated may not be written yet.
const waitsAfter = time.Second

// Queue returns all held pods, in the order in which the scheduler tries them, and when the next pod is to count as
// waiting; zero if there is none. Callers must call Trust before.
func (h *Pods) Queue(now time.Time) (queue []Queued, again time.Time) {
	h.each(func(_ types.UID, entry *heldPod) {
		due := entry.last().Add(waitsAfter)
		if now.Before(due) {
			again = nodegroups.Earliest(again, due)
		}
		waits := !now.Before(due) && !entry.assumed && !slices.Contains(entry.open, true) && !h.Since(entry.pod, now).NoRoom.IsZero() &&
			entry.pod.Status.NominatedNodeName == "" && !gate.UnschedulableSince(entry.pod).IsZero()
		queue = append(queue, Queued{h.turnOf(entry), entry.pod, entry.autoscalerKey, entry.viewKey, waits})
	})
	slices.SortFunc(queue, func(a, b Queued) int { return inOrder(a.turn, b.turn) })
	return queue, again
}

// Reserved records that a node is reserved for the pod, until the pod's next cycle fails.
func (h *Pods) Reserved(uid types.UID) { h.with(uid, func(entry *heldPod) { entry.assumed = true }) }

// toSync returns all held pods. With onlyNew, toSync returns only the pods that became held since the last sync.
func (h *Pods) toSync(onlyNew bool) []types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	uids := slices.Collect(maps.Keys(h.added))
	if !onlyNew {
		uids = slices.AppendSeq(make([]types.UID, 0, len(h.pods)), maps.Keys(h.pods))
	}
	h.added = map[types.UID]bool{}
	return uids
}

// candidates appends a Candidate for each pod that is still held.
func (h *Pods) candidates(to []Candidate, uids []types.UID, now time.Time) []Candidate {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, uid := range uids {
		if entry, ok := h.pods[uid]; ok {
			to = append(to, Candidate{entry: entry, version: entry.version, byLoop: entry.byLoop, Pod: entry.pod, AutoscalerKey: entry.autoscalerKey, ViewKey: entry.viewKey,
				Since: h.Since(entry.pod, now), Wait: ptr.Deref(entry.wait, gate.Wait{})})
		}
	}
	return to
}

// Result is the result of one call of Reconsider.
type Result struct {
	held   *Pods
	now    time.Time
	quotas quotas
	burst  func() map[string]*Space
	kinds  map[kindKey]*kind
	Next   time.Time // when to decide again if nothing changes; zero means never
	Again  bool      // set if entries changed during Reconsider; the next sync with onlyNew then decides for their pods
	// Budgets is set if one of the pods that Reconsider decided for waits for a budget. The caller then calls
	// WithinBudgets.
	Budgets bool
}

// findRoom sets c.room if a gate is open for the pod and the pod is one of those with byLoop. It is not known what the
// others need.
func (l *Result) findRoom(c *Candidate) {
	if !c.byLoop || !c.decision.Opens() {
		return
	}
	key := kindKeyOf(c.Pod, c.ViewKey, strings.Repeat("\x01", len(c.decision.Burst)))
	if l.kinds[key] == nil {
		l.kinds[key] = newKind(key, c.Pod, l.burst())
	}
	c.room = make([]bool, len(c.decision.Burst))
	for _, space := range l.kinds[key].spaces {
		c.room[space.Burst] = true
	}
}

// settle applies the decisions to the entries. If an entry has changed since it was copied, the next sync decides
// again.
func (l *Result) settle(candidates []Candidate) {
	l.held.mu.Lock()
	defer l.held.mu.Unlock()
	for i := range candidates {
		c := &candidates[i]
		entry, ok := l.held.pods[c.Pod.UID]
		switch {
		case !ok:
		case entry != c.entry || entry.version != c.version:
			l.held.added[c.Pod.UID] = true
			l.Again = true
		default:
			l.one(entry, c)
		}
	}
}

// one applies the decision to the pod's entry.
func (l *Result) one(entry *heldPod, c *Candidate) {
	decision, inVain, to := &c.decision, false, admission{at: l.now}
	open, _ := openPools(decision)
	for i := range open {
		switch v := &decision.Burst[i]; {
		case !open[i] || entry.open[i]:
		case c.room != nil && !c.room[i]:
			inVain, entry.budget[i] = true, false // WithinSpaces admits the pod when a node has room
		case l.quotas.add(l.held.turnOf(entry), i, v):
			open[i] = false // the gate counts as closed until admitByQuota admits the pod
		case v.Limited:
			entry.budget[i], entry.starting = true, false
		default:
			to.reason = GateOpened
		}
	}
	l.Budgets = l.Budgets || slices.Contains(entry.budget, true)
	isOpen := slices.Contains(open, true)
	if entry.open = open; !isOpen {
		if entry.admitted.budget = false; entry.admitted.waits() && entry.admitted.reason != Retry && !entry.admitted.reason.outlastsGate() {
			entry.admitted = admission{}
		}
	}
	if r := reasonOf(decision); r.code != "" && (inVain || r.code != gate.ReasonNoRoom.Code || entry.reason.code == r.code) { // else, the pod is about to be tried
		entry.reason = r
	}
	l.Next = nodegroups.Earliest(l.Next, decision.Until())
	if entry.starting && !isStarting(decision) {
		entry.starting, to.reason = false, Started
	}
	if due := entry.cycle.Add(retryStale); entry.stale && l.now.Before(due) {
		l.Next = nodegroups.Earliest(l.Next, due)
	} else if entry.stale {
		entry.stale, to.reason = false, NodeHasRoom
	}
	if to.reason != none {
		l.held.admitLocked(entry, to)
	}
}

// isStarting reports whether a regular pool keeps the gate closed because the scheduler is starting.
func isStarting(decision *gate.Decision) bool {
	return slices.ContainsFunc(decision.Regular, func(v gate.Verdict) bool { return v.Holds() && v.Reason.Code == ReasonStarting.Code })
}

// openPools returns, by the pool's index, whether the gate counts as open (heldPod.open), and whether only the budget
// closes it.
func openPools(decision *gate.Decision) (open, budget []bool) {
	open, budget = make([]bool, len(decision.Burst)), make([]bool, len(decision.Burst))
	for i := range decision.Burst {
		v := &decision.Burst[i]
		budget[i] = v.Reason.Code == gate.ReasonBudgetSpent.Code || v.Reason.Code == gate.ReasonCreateRate.Code
		open[i] = v.Open || budget[i] || v.Reason.Code == gate.ReasonSnapshotStale.Code
	}
	return open, budget
}
