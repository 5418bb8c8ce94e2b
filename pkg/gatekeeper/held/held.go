// Package held keeps the pods that the gate holds back. It records how long and for what they wait, and decides which
// of them to requeue.
package held

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// ReasonStarting is the reason of every regular pool until the gatekeeper first evaluates the pools.
var ReasonStarting = nodegroups.Reason{Code: "Starting", Sentence: "the scheduler is starting"}

// Pods are the pods that the gate holds back. Its methods are safe for concurrent use.
type Pods struct {
	mu           sync.Mutex
	pods         map[types.UID]*heldPod
	firstFailed  map[types.UID]time.Time          // when each pod became unschedulable, held or not
	clocks       map[types.UID]unschedulableClock // the clocks of unschedulable pods, held or not
	added        map[types.UID]bool               // pods that were held since the last sync
	reserved     map[types.UID]bool               // held pods with a reservation
	lastRequeued map[queue]time.Time              // when pods of each queue were last requeued
	// trusted is set once the times at which pods became unschedulable may be taken from their conditions. The last
	// leader's published times must be restored before: for pods that had scheduling gates, the conditions' times are
	// wrong.
	trusted bool
}

const (
	// retryWithoutCondition is how long a held pod may lack the condition Unschedulable before it is requeued. The time
	// doubles with each try, up to maxRetryWithoutCondition.
	retryWithoutCondition    = 10 * time.Second
	maxRetryWithoutCondition = 5 * time.Minute
	// retryStale is how long a pod stays held because of a stale snapshot before it is requeued. A node event may
	// requeue the pod earlier.
	retryStale = 100 * time.Millisecond
)

// clockTolerance bounds the difference between the time of a failure by our clock and the condition's time of the same
// failure.
const clockTolerance = 2 * time.Second

// unschedulableClock tracks since when autoscalers could act on an unschedulable pod.
type unschedulableClock struct {
	// noRoom is when the pod began to lack resources, if it had failed for a different reason before; zero otherwise.
	noRoom time.Time
	// stopped is set if the pod last failed for a reason other than a lack of resources, such as a gang or a missing
	// PVC.
	stopped bool
	// tried is the time of the last failure for such a reason.
	tried time.Time
	// ignored is when the pod was last seen nominated. Autoscalers ignore nominated pods.
	ignored time.Time
}

type heldPod struct {
	pod *v1.Pod
	// autoscalerKey is the pod's alike.Autoscaler key, and viewKey its alike.View key.
	autoscalerKey, viewKey string
	// version is raised by each change of the entry, except by changes that a sync makes.
	version int
	// open is, by the pool's index, whether the gate was open at the last decision. A gate that only the budget or a
	// stale snapshot closes counts as open: WithinBudgets or retryStale requeues the pod. A gate that a quota opens
	// counts as open once the pod has been requeued.
	open   []bool
	budget bool // a budget closed a gate when the pod was last held
	// reason is why the pod is held, according to the last decision that closed a gate.
	reason reason
	// stale is set if the snapshot was stale. The pod is then requeued after retryStale.
	stale bool
	// starting is set if the pod was held because the scheduler was starting. The pod is requeued once the scheduler
	// has started, to get its actual reason.
	starting bool
	// reservation is the capacity that the pod waits for; nil if there is none.
	reservation *Reservation
	// waitsForRollout is the first Reservation.Since of all reservations that the pod has had; zero if there is none.
	waitsForRollout time.Time
	// reservedAt is when the pod was last requeued because a budget had room for it. It is zero if the pod was not
	// requeued for this reason since it was last held.
	reservedAt time.Time
	// since is the later of two times: when the pod was last held, and when it was last requeued because it lacked the
	// condition. tries counts the requeues because of the condition.
	since time.Time
	tries int
}

// New returns Pods without entries.
func New() *Pods {
	return &Pods{pods: map[types.UID]*heldPod{}, firstFailed: map[types.UID]time.Time{}, clocks: map[types.UID]unschedulableClock{}, added: map[types.UID]bool{},
		reserved: map[types.UID]bool{}, lastRequeued: map[queue]time.Time{}}
}

// Failed records that the pod is unschedulable as of now, unless an earlier time is known. wantsRoom is set if the pod
// lacks resources. A failure for another reason resets the time at which the pod began to lack resources.
func (h *Pods) Failed(pod *v1.Pod, wantsRoom bool, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(pod, now)
	c := h.clocks[pod.UID]
	switch {
	case !wantsRoom:
		c.stopped, c.tried, c.noRoom = true, now, time.Time{}
	case wantsRoom && c.stopped:
		c.stopped, c.noRoom = false, now
	default:
		return
	}
	h.clocks[pod.UID] = c
}

func (h *Pods) noteLocked(pod *v1.Pod, now time.Time) {
	if _, ok := h.firstFailed[pod.UID]; ok {
		return
	}
	switch since := gate.UnschedulableSince(pod); {
	case since.IsZero():
		h.firstFailed[pod.UID] = now
	case h.trusted:
		h.firstFailed[pod.UID] = since
	}
}

// Trust makes Pods use the times of the pods' conditions from now on.
func (h *Pods) Trust(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted = true
	for _, entry := range h.pods {
		h.noteLocked(entry.pod, now)
	}
}

// Add records that the decision holds the pod as of now, and the pod's reservation if the reservation closed the gate.
func (h *Pods) Add(pod *v1.Pod, kind string, decision *gate.Decision, reservation *Reservation, now time.Time) {
	class := alike.View(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(pod, now)
	tries := 0
	var waitsForRollout time.Time
	if before, ok := h.pods[pod.UID]; ok {
		tries, waitsForRollout = before.tries, before.waitsForRollout
	}
	if reservation != nil && waitsForRollout.IsZero() {
		waitsForRollout = reservation.Since
	}
	h.pods[pod.UID] = &heldPod{
		pod: pod, autoscalerKey: kind, viewKey: class, open: openPools(decision), budget: decision.Closes(gate.ReasonBudgetSpent), stale: decision.Closes(gate.ReasonSnapshotStale),
		starting: isStarting(decision), reason: reasonOf(decision), reservation: reservation, waitsForRollout: waitsForRollout, since: now, tries: tries,
	}
	h.added[pod.UID] = true
	if reservation != nil {
		h.reserved[pod.UID] = true
	} else {
		delete(h.reserved, pod.UID)
	}
}

// Release drops the pod's reservation.
func (h *Pods) Release(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[uid]; ok && entry.reservation != nil {
		entry.reservation = nil
		entry.version++
		delete(h.reserved, uid)
	}
}

// Pod is the part of a held pod's entry that scheduling cycles use.
type Pod struct {
	// Budget is set if a budget holds the pod.
	Budget bool
	// Reservation is the pod's reservation; empty if it has none.
	Reservation Reservation
	// WaitsForRollout is when the pod first waited for pods of its rollout that were not terminating yet; zero if it
	// never did.
	WaitsForRollout time.Time
}

// Lookup returns the entry of the pod, and whether the pod is held.
func (h *Pods) Lookup(uid types.UID) (Pod, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[uid]
	if !ok {
		return Pod{}, false
	}
	known := Pod{Budget: entry.budget, WaitsForRollout: entry.waitsForRollout}
	if entry.reservation != nil {
		known.Reservation = *entry.reservation
	}
	return known, true
}

// Reservations returns the reservations of all held pods except the pod with this UID.
func (h *Pods) Reservations(but types.UID) []ReservedPod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var reserved []ReservedPod
	for uid := range h.reserved {
		if entry := h.pods[uid]; uid != but {
			reserved = append(reserved, ReservedPod{entry.pod, *entry.reservation})
		}
	}
	return reserved
}

// RolloutChanged schedules an earlier retry of the pods that wait for the Deployment's rollout. The interval between
// retries is rolloutRetryInterval, or longer if many pods wait. RolloutChanged reports whether it made any retry
// earlier.
func (h *Pods) RolloutChanged(deployment types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var waiting []*heldPod
	for uid := range h.reserved {
		if entry := h.pods[uid]; entry.reservation.Deployment == deployment {
			waiting = append(waiting, entry)
		}
	}
	after := max(rolloutRetryInterval, time.Duration(len(waiting))*TryEach)
	moved := false
	for _, entry := range waiting {
		if due := entry.since.Add(after); due.Before(entry.reservation.Until) {
			entry.reservation.Until, moved = due, true
			entry.version++
		}
	}
	return moved
}

// Update processes a change of a pending pod. It reports whether the pod is held and its burst annotation has changed.
// The caller must then requeue the pod, because the scheduling queue does not.
func (h *Pods) Update(before, pod *v1.Pod, now time.Time) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[pod.UID]; ok {
		changed = entry.pod.Annotations[pool.BurstAnnotation] != pod.Annotations[pool.BurstAnnotation]
		entry.pod = pod
		entry.version++
		if !equality.Semantic.DeepEqual(before.Spec, pod.Spec) || !maps.Equal(before.Annotations, pod.Annotations) {
			entry.viewKey = alike.View(pod)
		}
	}
	if _, known := h.firstFailed[pod.UID]; known && (before.Status.NominatedNodeName != "" || pod.Status.NominatedNodeName != "") {
		c := h.clocks[pod.UID]
		c.ignored = now
		h.clocks[pod.UID] = c
	}
	return changed
}

// Remove forgets the pod.
func (h *Pods) Remove(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, uid)
	delete(h.firstFailed, uid)
	delete(h.clocks, uid)
	delete(h.added, uid)
	delete(h.reserved, uid)
}

// Waiting has the times from which the waiting time of a pod is counted.
type Waiting struct {
	Unschedulable time.Time // when the pod became unschedulable; zero if unknown
	NoRoom        time.Time // when the pod began to lack resources; zero if unknown
	Ignored       time.Time // when autoscalers last ignored the pod; zero if they never did
}

// Since returns the times from which the pod's waiting time is counted, as of now.
func (h *Pods) Since(pod *v1.Pod, now time.Time) Waiting {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sinceLocked(pod, now)
}

func (h *Pods) sinceLocked(pod *v1.Pod, now time.Time) Waiting {
	var w Waiting
	if since, ok := h.firstFailed[pod.UID]; ok || !h.trusted {
		w.Unschedulable = since
	} else {
		w.Unschedulable = gate.UnschedulableSince(pod)
	}
	c := h.clocks[pod.UID]
	w.NoRoom, w.Ignored = w.Unschedulable, c.ignored
	if c.stopped || !c.noRoom.IsZero() {
		w.NoRoom = c.noRoom
	}
	if pod.Status.NominatedNodeName != "" {
		w.Ignored = now
	}
	return w
}

// Count returns the number of held pods.
func (h *Pods) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pods)
}

// UnknownToAPI returns the times from which the next leader counts the waits of pods whose condition does not show
// them. It returns at most the n oldest. There are two kinds of such pods. Held pods have a condition with an earlier
// time, because they had scheduling gates or once failed for a reason other than a lack of resources. Pods that are not
// held last failed for such a reason, for example an incomplete gang, which may become complete while no scheduler
// leads.
func (h *Pods) UnknownToAPI(n int) map[types.UID]time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	var uids []types.UID
	for uid, entry := range h.pods {
		if c := gate.ScheduledCondition(entry.pod); c != nil && h.latest(uid).Sub(c.LastTransitionTime.Time) > clockTolerance {
			uids = append(uids, uid)
		}
	}
	for uid, c := range h.clocks {
		if _, held := h.pods[uid]; c.stopped && !held {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(a, b types.UID) int { return h.latest(a).Compare(h.latest(b)) })
	known := map[types.UID]time.Time{}
	for _, uid := range uids[:min(n, len(uids))] {
		known[uid] = h.latest(uid)
	}
	return known
}

// latest returns the time that UnknownToAPI returns for the pod. If the pod's last failure was for a reason other than
// a lack of resources, that is the time of this failure. Otherwise it is the later of two times: when the pod became
// unschedulable, and when it began to lack resources.
func (h *Pods) latest(uid types.UID) time.Time {
	since := h.firstFailed[uid]
	if c := h.clocks[uid]; c.stopped {
		return c.tried
	} else if c.noRoom.After(since) {
		return c.noRoom
	}
	return since
}

// Restore sets the time at which the pod became unschedulable.
func (h *Pods) Restore(uid types.UID, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.firstFailed[uid] = since
}

// Any reports whether matters returns true for at least one held pod.
func (h *Pods) Any(matters func(*v1.Pod) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, entry := range h.pods {
		if matters(entry.pod) {
			return true
		}
	}
	return false
}

// Unreported returns the pods, by namespace/name, to requeue now because they lack the condition Unschedulable. The
// write of their condition was lost, and autoscalers consider only pods with the condition. Unreported also returns
// when the next such pod is due.
func (h *Pods) Unreported(now time.Time) (map[string]*v1.Pod, time.Time) {
	pods := map[string]*v1.Pod{}
	var next time.Time
	h.each(func(_ types.UID, entry *heldPod) {
		if !gate.UnschedulableSince(entry.pod).IsZero() {
			return
		}
		if !now.Before(entry.withoutConditionUntil()) {
			pods[nameOf(entry.pod)] = entry.pod
			entry.tries++
			entry.since = now
		}
		next = nodegroups.Earliest(next, entry.withoutConditionUntil())
	})
	return pods, next
}

// withoutConditionUntil returns when the pod is requeued if it still lacks the condition Unschedulable.
func (p *heldPod) withoutConditionUntil() time.Time {
	return p.since.Add(min(retryWithoutCondition<<min(p.tries, 10), maxRetryWithoutCondition))
}

// nameOf returns the pod's namespace/name, the key by which the scheduler activates pods.
func nameOf(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// each calls do for each held pod, under the lock. After every syncChunk pods, it releases the lock, and entries may
// change. do may therefore keep only copies of an entry's fields, and the pointer to the entry. If h.pods later still
// has the same pointer, the pod was not held again meanwhile.
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
