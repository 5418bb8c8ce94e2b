package held

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// Reason is why a held pod is admitted: why it gets its next cycle.
type Reason int

const (
	none       Reason = iota
	Retry             // the pod's last cycle was long ago; all other pods go first
	GateOpened        // the gate of a burst pool has opened
	Trial             // the gate has opened for a few pods only
	Budget            // the budgets of a burst pool have room for the pod
	// The reasons from here on outlast the gate.
	NodeHasRoom // a node may have room; the snapshot of the last cycle may have been too old to show it
	PodChanged  // the pod has changed
	Started     // the scheduler has started, and can find why the pod waits
	NoCondition // autoscalers ignore the pod
)

// outlastsGate reports whether a pod stays admitted if it is held again. Of the other reasons, only Retry stays if the
// pod's gates close.
func (r Reason) outlastsGate() bool { return r >= NodeHasRoom }

// admission is how a held pod gets, or last got, a cycle.
type admission struct {
	reason Reason
	at     time.Time // when the pod was admitted; once it is sent, when its batch was requeued
	sent   bool
	// node is the node, and budget is whether budget is, reserved for the pod while the admission lasts.
	node   string
	budget bool
}

// admissionTTL is how long an admission lasts after its batch was requeued. A cycle of the pod ends it earlier.
const admissionTTL = 10 * time.Second

// waits reports whether the pod waits for its batch.
func (a *admission) waits() bool { return a.reason != none && !a.sent }

// lasts reports whether the admission lasts. A long queue of batches does not end it.
func (a *admission) lasts(now time.Time) bool {
	return a.waits() || a.sent && now.Before(a.at.Add(admissionTTL))
}

// last returns when the pod's last cycle failed or, if that was later, when the pod was admitted.
func (p *heldPod) last() time.Time { return nodegroups.Latest(p.cycle, p.admitted.at) }

// admitLocked makes the pod wait for its batch, and reports whether it did. A pod that waits already keeps its reason,
// unless only the new one outlasts the gate, or the old one is Retry. What is reserved for the pod stays reserved.
func (h *Pods) admitLocked(entry *heldPod, to admission) bool {
	old := &entry.admitted
	if old.lasts(to.at) {
		to.node, to.budget = cmp.Or(to.node, old.node), to.budget || old.budget
	}
	isNew := !old.waits() || old.reason == Retry && to.reason != Retry
	if !isNew && (old.reason.outlastsGate() || !to.reason.outlastsGate()) {
		old.node, old.budget = to.node, to.budget
		return false
	}
	if entry.admitted = to; isNew {
		turn := h.turnOf(entry)
		turn.isRetry = to.reason == Retry
		h.batches.added = append(h.batches.added, turn)
	}
	return true
}

// turn is the place of a held pod in the order of batches. The fields are copies.
type turn struct {
	entry    *heldPod // only the pointer is compared
	pod      *v1.Pod
	since    time.Time
	priority int32
	isRetry  bool // set in the order of batches, if the pod was admitted with Retry
}

func (h *Pods) turnOf(entry *heldPod) turn {
	return turn{entry: entry, pod: entry.pod, since: h.Since(entry.pod, time.Time{}).Unschedulable, priority: corev1helpers.PodPriority(entry.pod)}
}

// inOrder compares pods by priority, and then by waiting time. Pods with Retry come after all others.
func inOrder(a, b turn) int {
	return cmp.Or(place[a.isRetry]-place[b.isRetry], cmp.Compare(b.priority, a.priority), a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
}

// place orders false before true.
var place = map[bool]int{false: 0, true: 1}

// Held pods are requeued in batches, so that new pods get their turn between two batches, and so do their requests at the
// API server. A batch has as many pods as the scheduler tries and binds in batchTime, as measured with the last batch: at
// least minBatch and at most maxBatch. When the scheduler has tried all pods of the last batch and binds none of them any more,
// the next batch follows. If none could be bound, a third of the time that this took is left to other pods first: held pods are
// older, so a new pod of the same priority is tried only while none of them is in the queue. While pods are being bound, others
// get their turn anyway. The next batch follows after batchTimeout at the latest. Pods that wait for volumes, or for
// the other members of a gang, are not being bound yet.
const (
	firstBatch, minBatch, maxBatch = 25, 10, 1000
	batchTime, batchTimeout        = 50 * time.Millisecond, time.Second
)

// batches has the pods that wait for their batch, and the last batch.
type batches struct {
	added   []turn             // pods that are not in sorted yet
	sorted  []turn             // only NextBatch uses it; includes pods that no longer wait for their batch
	last    map[types.UID]bool // the pods of the last batch, except for those that failed or are bound
	untried map[types.UID]bool // those that no cycle has tried
	binding map[types.UID]bool // those that are being bound
	bound   bool               // whether any of the last batch was being bound

	pods, limit        int       // the number of pods in the last batch, and the maximum
	sent, tried, ended time.Time // when the last batch was requeued, and when one of its pods was last tried or ended
}

// NextBatch returns the pods of the next batch, by namespace/name, and no pods if none is due. The caller requeues these
// pods. again is when to call NextBatch again; if it is zero, only a new admission makes a batch due. Only one goroutine
// may call NextBatch.
func (h *Pods) NextBatch(now time.Time) (pods map[string]*v1.Pod, again time.Time) {
	b := &h.batches
	pods = map[string]*v1.Pod{}
	h.mu.Lock()
	b.sorted, b.added = append(b.sorted, b.added...), nil
	h.mu.Unlock()
	slices.SortFunc(b.sorted, inOrder) // without the lock
	h.mu.Lock()
	defer h.mu.Unlock()
	tried, took := b.pods-len(b.untried), max(b.tried.Sub(b.sent), b.ended.Sub(b.sent), time.Millisecond)
	if len(b.untried)+len(b.binding) > 0 {
		again = b.sent.Add(batchTimeout)
	} else if b.pods > 0 && !b.bound {
		again = b.sent.Add(min(took+took/3, batchTimeout))
	}
	if now.Before(again) {
		return nil, again
	}
	if b.pods > 0 {
		b.limit = min(max(int(time.Duration(tried)*batchTime/took), minBatch), maxBatch)
	}
	b.bound, b.last, b.untried, b.binding = false, map[types.UID]bool{}, map[types.UID]bool{}, map[types.UID]bool{}
	for len(b.sorted) > 0 && len(pods) < cmp.Or(b.limit, firstBatch) {
		// A turn may be left of an admission that has ended.
		if entry := h.pods[b.sorted[0].pod.UID]; entry != nil && entry.admitted.waits() && (entry.admitted.reason == Retry) == b.sorted[0].isRetry {
			entry.admitted.sent, entry.admitted.at = true, now
			pods[nameOf(entry.pod)], b.last[entry.pod.UID], b.untried[entry.pod.UID] = entry.pod, true, true
		}
		b.sorted = b.sorted[1:]
	}
	if b.pods, b.sent, b.tried, b.ended = len(pods), now, now, now; b.pods > 0 {
		again = now.Add(batchTimeout)
	}
	return pods, again
}

// Tried records that a scheduling cycle tries the pod. batch reports whether to call NextBatch now, and alone whether the
// pod is held and what it finds out holds for no other pod.
func (h *Pods) Tried(uid types.UID, now time.Time) (batch, alone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, isHeld := h.pods[uid]
	alone = isHeld && entry.autoscalerKey == ""
	b := &h.batches
	if !b.untried[uid] {
		return false, alone
	}
	delete(b.untried, uid)
	b.tried = now
	return len(b.untried)+len(b.binding) == 0, alone
}

// Binding records that the pod is being bound.
func (h *Pods) Binding(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batches.last[uid] {
		h.batches.binding[uid], h.batches.bound = true, true
	}
}

// Ended records that a scheduling cycle of the pod failed, or that the pod was bound or deleted. It reports whether to
// call NextBatch now, and whether budget was reserved for the pod. Until the pod is held again, it waits for no budget.
func (h *Pods) Ended(uid types.UID, now time.Time) (batch, budget bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[uid]; ok {
		budget = entry.admitted.budget
		entry.admitted.budget, entry.admitted.node = false, ""
		if entry.cycle, entry.byLoop, entry.assumed = now, false, false; entry.admitted.sent {
			entry.admitted = admission{} // other room is there for the pod at once
		}
		clear(entry.budget)
	}
	b := &h.batches
	if !b.last[uid] {
		return false, budget
	}
	delete(b.last, uid)
	delete(b.untried, uid)
	delete(b.binding, uid)
	b.ended = now
	return len(b.untried)+len(b.binding) == 0, budget
}
