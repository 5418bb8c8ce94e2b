// Package held keeps the pods that the gate holds back, with the reason of each, and gives them their next cycles. It
// admits a pod, for one Reason: the pod then waits for its batch. The gatekeeper requeues the pods of a batch with
// Activate. Unless byLoop is set, the scheduling queue also requeues a held pod by itself.
package held

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/waiting"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// ReasonStarting is the reason of every regular pool until the gatekeeper first evaluates the pools.
var ReasonStarting = nodegroups.Reason{Code: "Starting", Sentence: "the scheduler is starting"}

// Pods is the set of pods that the gate holds back. Its methods are safe for concurrent use.
type Pods struct {
	*waiting.Room // has all pods that wait for a node, also those that are not held

	mu           sync.Mutex
	pods         map[types.UID]*heldPod
	added        map[types.UID]bool  // pods for which the next sync with onlyNew decides
	waits        map[types.UID]bool  // held pods with a wait
	lastAdmitted map[queue]time.Time // when pods of each queue were last admitted
	batches      batches
}

const (
	// retryWithoutCondition is how long a held pod may lack the condition Unschedulable before it is admitted. The time
	// doubles with each of these admissions, up to retryHeld.
	retryWithoutCondition = 10 * time.Second
	// retryNominated replaces retryWithoutCondition for a held pod that is nominated to a node that does not exist.
	retryNominated = time.Second
	// If a stale snapshot closed the gate, the held pod is admitted after retryStale. A node event may requeue the pod
	// earlier.
	retryStale = 100 * time.Millisecond
	// retryHeld is how long after its last cycle or admission a held pod is admitted at the latest. The scheduling queue would requeue
	// all such pods at once after 5 min.
	retryHeld = 4 * time.Minute
)

type heldPod struct {
	pod *v1.Pod
	// autoscalerKey is the pod's alike.Autoscaler key, and viewKey is its alike.View key.
	autoscalerKey, viewKey string
	// version increases with each change of the entry. Changes by a sync do not increase it.
	version int
	// open is, by the pool's index, whether the last decision opened the gate. If only the budget or a stale snapshot
	// closes a gate, the gate counts as open, because the pod is admitted by WithinBudgets or after retryStale. If a
	// quota opens a gate for a few pods only, the gate counts as open once the pod has been admitted.
	open []bool
	// budget is, by the pool's index, whether the pod waits for the pool's budget. Either the budget closed the gate
	// when the pod was last held, or the gate of a pool with a budget has opened since.
	budget []bool
	// cycle is when the pod's last cycle failed. admitted is how the pod gets its next one.
	cycle    time.Time
	admitted admission
	// byLoop is set if WithinSpaces admits the pod when a node has room. The scheduling queue then does not requeue the
	// pod at events. local is set from Local until ByLoop.
	byLoop, local bool
	assumed       bool // a node is reserved for the pod, until its next cycle fails
	// reason is why the pod is held, according to the last decision that closed a gate or opened it in vain.
	reason reason
	// stale is set if a stale snapshot closed a gate. The pod is then admitted after retryStale.
	stale bool
	// starting is set if the pod was held because the scheduler was starting. The pod is admitted once the scheduler
	// has started, to get its actual reason.
	starting bool
	// wait is what the pod waits for instead of bursting, because other pods will soon be gone; nil if there is nothing.
	wait *gate.Wait
	// waitsForRollout is when the pod first waited for its rollout; zero if it never did.
	waitsForRollout time.Time
	tries           int // how often the pod was admitted with NoCondition
}

// New returns Pods without entries.
func New() *Pods {
	return &Pods{Room: waiting.New(), pods: map[types.UID]*heldPod{}, added: map[types.UID]bool{}, waits: map[types.UID]bool{}, lastAdmitted: map[queue]time.Time{}}
}

// Add records that the decision holds the pod back as of now. wait is what closed the gate, or nil.
func (h *Pods) Add(pod *v1.Pod, kind string, decision *gate.Decision, wait *gate.Wait, now time.Time) {
	class := alike.View(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Note(pod, now)
	before := cmp.Or(h.pods[pod.UID], &heldPod{})
	entry := &heldPod{pod: pod, autoscalerKey: kind, viewKey: class, cycle: now, stale: decision.Closes(gate.ReasonSnapshotStale), starting: isStarting(decision),
		reason: reasonOf(decision), wait: wait, waitsForRollout: before.waitsForRollout, tries: before.tries}
	entry.open, entry.budget = openPools(decision)
	if before.admitted.waits() && before.admitted.reason.outlastsGate() {
		entry.admitted = before.admitted
		entry.admitted.budget = false
	}
	if wait != nil && wait.ReplicaSet != "" && entry.waitsForRollout.IsZero() {
		entry.waitsForRollout = now
	}
	h.pods[pod.UID] = entry
	h.added[pod.UID] = true
	if wait != nil {
		h.waits[pod.UID] = true
	} else {
		delete(h.waits, pod.UID)
	}
}

// Local records that only plugins that look at single nodes rejected the pod, until ByLoop is called.
func (h *Pods) Local(uid types.UID) { h.with(uid, func(entry *heldPod) { entry.local = true }) }

// ByLoop ends the failed cycle of the pod. If the pod is held, byLoop is true and Local was called, WithinSpaces and not
// the scheduling queue lets the pod try a node with room. ByLoop reports whether this is so.
func (h *Pods) ByLoop(uid types.UID, byLoop bool) (is bool) {
	h.with(uid, func(entry *heldPod) {
		is = byLoop && entry.local
		entry.byLoop, entry.local = is, false
	})
	return is
}

// Release ends the pod's wait.
func (h *Pods) Release(uid types.UID) {
	h.with(uid, func(entry *heldPod) {
		if entry.wait != nil {
			entry.wait = nil
			entry.version++
			delete(h.waits, uid)
		}
	})
}

// Pod is the part of a held pod's entry that scheduling cycles use.
type Pod struct {
	// ByLoop is set if WithinSpaces requeues the pod.
	ByLoop bool
	// Open is, by the pool's index, whether the last decision opened the gate without regard to budgets.
	Open []bool
}

// Lookup returns the entry of the pod, and whether the pod is held.
func (h *Pods) Lookup(uid types.UID) (pod Pod, isHeld bool) {
	h.with(uid, func(entry *heldPod) { pod, isHeld = Pod{ByLoop: entry.byLoop, Open: slices.Clone(entry.open)}, true })
	return pod, isHeld
}

// ForRollout returns when the pod first waited for its rollout, zero if it never did, and how many other pods of the
// ReplicaSet wait for it.
func (h *Pods) ForRollout(pod, replicaSet types.UID) (since time.Time, others int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range h.waits {
		if uid != pod && h.pods[uid].wait.ReplicaSet == replicaSet {
			others++
		}
	}
	if entry, ok := h.pods[pod]; ok {
		since = entry.waitsForRollout
	}
	return since, others
}

// Update processes a change of a pending pod. If the pod is held and its annotation for bursting or for its order, its
// requests or its tolerations have changed, Update admits it, because the scheduling queue may not requeue it. Update
// reports whether the pod has changed so.
func (h *Pods) Update(before, pod *v1.Pod, now time.Time) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, anew := h.pods[pod.UID], false
	if entry != nil {
		changed = entry.pod.Annotations[pool.BurstAnnotation] != pod.Annotations[pool.BurstAnnotation] ||
			entry.pod.Annotations[pool.OrderAnnotation] != pod.Annotations[pool.OrderAnnotation]
		entry.pod = pod
		entry.version++
		if !equality.Semantic.DeepEqual(before.Spec, pod.Spec) || !maps.Equal(before.Annotations, pod.Annotations) {
			view := alike.View(pod)
			anew = view != entry.viewKey
			entry.viewKey = view
		}
		if changed = changed || anew; changed {
			h.admitLocked(entry, admission{reason: PodChanged, at: now})
		}
	}
	h.Room.Update(before, pod, anew, now)
	return changed
}

// Remove forgets the pod. It reports whether the pod was held.
func (h *Pods) Remove(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, isHeld := h.pods[uid]
	delete(h.pods, uid)
	delete(h.added, uid)
	delete(h.waits, uid)
	h.Room.Remove(uid)
	return isHeld
}

// Count returns the number of held pods.
func (h *Pods) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pods)
}

// UnknownToAPI returns, for the next leader, since when pods have waited, and when autoscalers last ignored them, if the
// pods' conditions do not show it (waiting.Room.UnknownToAPI).
func (h *Pods) UnknownToAPI() (known, ignored map[types.UID]time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Room.UnknownToAPI(func(uid types.UID) bool { return h.pods[uid] != nil })
}

// Any reports whether matters returns true for at least one held pod and the code of its reason.
func (h *Pods) Any(matters func(pod *v1.Pod, code string) bool) bool {
	found := false
	h.each(func(_ types.UID, entry *heldPod) { found = found || matters(entry.pod, entry.reason.code) })
	return found
}

// Overdue admits held pods that no event requeues in time, and returns when the next one is due. It admits pods
// retryHeld after their last cycle, and earlier if autoscalers ignore them, although they wait for an autoscaler: a pod
// lacks the condition Unschedulable, because its write was lost, or is nominated to a node that does not exist any more,
// and its next cycle clears the nomination. ignored is the number of these pods.
func (h *Pods) Overdue(exists func(node string) bool, now time.Time) (ignored int, next time.Time) {
	h.each(func(_ types.UID, entry *heldPod) {
		to, retry := admission{reason: NoCondition, at: now}, retryWithoutCondition
		if node := entry.pod.Status.NominatedNodeName; node != "" && !exists(node) {
			retry = retryNominated
		} else if !gate.UnschedulableSince(entry.pod).IsZero() {
			to.reason, retry = Retry, retryHeld
		}
		due := func() time.Time { return entry.last().Add(min(retry<<min(entry.tries, 10), retryHeld)) }
		if !now.Before(due()) && h.admitLocked(entry, to) && to.reason == NoCondition {
			ignored++
			entry.tries++
		}
		if due := due(); now.Before(due) {
			next = nodegroups.Earliest(next, due)
		}
	})
	return ignored, next
}

// with calls the function do for the pod's entry, under the lock. If the pod is not held, it does nothing.
func (h *Pods) with(uid types.UID, do func(*heldPod)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[uid]; ok {
		do(entry)
	}
}

// nameOf returns the pod's namespace/name, the key by which the scheduler activates pods.
func nameOf(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// each calls the function do for each held pod, under the lock. After every syncChunk pods, the lock is released for a
// moment, and entries may change. The function do must therefore copy the fields that it keeps. It may also keep the
// pointer to the entry. If h.pods later has a different pointer for the pod, the pod was held again.
func (h *Pods) each(do func(types.UID, *heldPod)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uids := slices.AppendSeq(make([]types.UID, 0, len(h.pods)), maps.Keys(h.pods))
	for i, uid := range uids {
		if i%syncChunk == syncChunk-1 {
			h.mu.Unlock()
			h.mu.Lock()
		}
		if entry, ok := h.pods[uid]; ok {
			do(uid, entry)
		}
	}
}
