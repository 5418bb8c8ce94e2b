// Package held keeps the pods that the gate holds back. It records since when and for what they wait, and decides which
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
	firstFailed  map[types.UID]time.Time          // since when a pod has been unschedulable, held or not
	clocks       map[types.UID]unschedulableClock // for an unschedulable pod, held or not
	added        map[types.UID]bool               // held since the last sync
	reserved     map[types.UID]bool               // held, with a reservation
	lastRequeued map[queue]time.Time              // when pods of a queue were requeued last
	// trusted is set once the times at which pods became unschedulable may be taken from their conditions. For pods
	// that had scheduling gates, these times are wrong. The last leader's published times must be restored first.
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

// unschedulableClock tracks how long autoscalers could act on an unschedulable pod.
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
	// autoscalerKey is alike.Autoscaler of the pod, and viewKey alike.View.
	autoscalerKey, viewKey string
	// version is raised by each change of the entry, except by changes that a sync makes.
	version int
	// open is, by the pool's index, whether the gate was open at the last sync. A gate that only the budget or a stale
	// snapshot closes counts as open, because WithinBudgets and retryStale requeue the pod.
	open   []bool
	budget bool // the budget closed a gate
	// reason is why the pod is held, as of the last sync.
	reason reason
	// stale is set if the snapshot was stale: the pod is requeued after retryStale.
	stale bool
	// starting is set if the pod was held because the scheduler was starting. The pod is requeued once the scheduler
	// has started, to get its actual reason.
	starting bool
	// reservation is the capacity that the pod waits for; nil if there is none.
	reservation *Reservation
	// waitsForRollout is the first Since of the pod's reservations.
	waitsForRollout time.Time
	// reservedAt is when the pod was last requeued because a budget had room, if the pod has not been held since; zero
	// otherwise.
	reservedAt time.Time
	// since is when the pod was last held or requeued because its condition was missing. tries is how often it was
	// requeued for that.
	since time.Time
	tries int
}

// New returns Pods without entries.
func New() *Pods {
	return &Pods{pods: map[types.UID]*heldPod{}, firstFailed: map[types.UID]time.Time{}, clocks: map[types.UID]unschedulableClock{}, added: map[types.UID]bool{},
		reserved: map[types.UID]bool{}, lastRequeued: map[queue]time.Time{}}
}

// Failed remembers that the pod is unschedulable as of now, unless an earlier time is known. wantsRoom is set if the
// pod lacks resources. A failure for another reason restarts the time for which the pod has lacked resources.
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

// Trust makes Pods use the conditions' times from now on.
func (h *Pods) Trust(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted = true
	for _, entry := range h.pods {
		h.noteLocked(entry.pod, now)
	}
}

// Add remembers a pod that the decision holds as of now, and the pod's reservation if the reservation closed the gate.
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

// Lookup returns the entry of the pod, and whether it is held.
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

// RolloutChanged schedules a retry of the pods that wait for the rollout of the Deployment. The interval between
// retries is rolloutRetryInterval, and longer if many pods wait. RolloutChanged reports whether any retry is earlier
// than before.
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

// Update processes the change of a pending pod. It reports whether a held pod must be requeued because its burst
// annotation changed, for which the scheduling queue does not requeue it.
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

// Waiting has the times from which a pod's waiting time is counted.
type Waiting struct {
	Unschedulable time.Time // since when it has been unschedulable; zero if it is not known to be
	NoRoom        time.Time // since when it has lacked resources; zero if it is not known to lack any
	Ignored       time.Time // when autoscalers last ignored it; zero if they never did
}

// Since returns the waiting times of the pod as of now.
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

// UnknownToAPI returns since when pods may have lacked resources, for at most the n oldest pods whose condition shows a
// different time. Some of them are held pods whose condition has been False since they had scheduling gates. The others
// last failed for a reason other than a lack of resources, such as a gang. This reason may end while no scheduler
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

// latest returns when the pod last failed for a reason other than a lack of resources, if that was its last failure.
// Otherwise it returns the later of two times: when the pod became unschedulable, and when it began to lack resources.
func (h *Pods) latest(uid types.UID) time.Time {
	since := h.firstFailed[uid]
	if c := h.clocks[uid]; c.stopped {
		return c.tried
	} else if c.noRoom.After(since) {
		return c.noRoom
	}
	return since
}

// Restore sets the time since which the pod has been unschedulable.
func (h *Pods) Restore(uid types.UID, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.firstFailed[uid] = since
}

// Any reports whether at least one held pod matters.
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

// Unreported returns the pods, by namespace/name, to requeue now because they lack the condition Unschedulable: its
// write was lost, and autoscalers see only pods that have it. Unreported also returns when the next such pod is due.
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

// each calls do for each held pod, under the lock. It releases the lock after every syncChunk pods, and entries may
// change meanwhile, so do may keep only copies of fields. do may also keep the pointer to an entry, to compare it with
// h.pods later: if they are equal, the pod was not held again meanwhile.
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
