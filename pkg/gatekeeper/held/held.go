// Package held keeps the pods that the gate holds back: since when they wait, what they wait for, and which of them to
// requeue.
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

// ReasonStarting is the reason of every pool until the informers have synced.
var ReasonStarting = nodegroups.Reason{Code: "Starting", Sentence: "the scheduler is starting"}

// Pods are the pods that the gate holds back. Its methods may be called by many goroutines.
type Pods struct {
	mu           sync.Mutex
	pods         map[types.UID]*heldPod
	firstFailed  map[types.UID]time.Time          // since when a pod has been unschedulable, held or not
	clocks       map[types.UID]unschedulableClock // when such a pod lacked resources and was nominated
	added        map[types.UID]bool               // held since the last look
	reserved     map[types.UID]bool               // held, and reserved something
	lastRequeued map[queue]time.Time              // when pods of a queue were requeued last
	// trusted is set once the API's times of becoming unschedulable can be used. For pods that had scheduling gates
	// they are wrong, and the last leader's published times are needed.
	trusted bool
}

const (
	// retryWithoutCondition is how long a held pod may lack the condition Unschedulable before it is requeued. It
	// doubles with each try, up to maxRetryWithoutCondition.
	retryWithoutCondition    = 10 * time.Second
	maxRetryWithoutCondition = 5 * time.Minute
	// retryStale is how soon a pod is requeued after a stale snapshot held it, if no event of a node requeues it
	// before.
	retryStale = 100 * time.Millisecond
)

// clockTolerance bounds the difference between our clock and the condition's time of the same failure.
const clockTolerance = 2 * time.Second

// unschedulableClock tracks how long autoscalers could act on an unschedulable pod.
type unschedulableClock struct {
	// noRoom is when it began to lack resources, if it became unschedulable for another reason.
	noRoom time.Time
	// stopped is set if it last failed for another reason: a gang, a missing PVC.
	stopped bool
	// tried is the time of that failure.
	tried time.Time
	// ignored is when it was last seen nominated: autoscalers ignore nominated pods.
	ignored time.Time
}

type heldPod struct {
	pod *v1.Pod
	// autoscalerKey is alike.Autoscaler of the pod, and viewKey alike.View.
	autoscalerKey, viewKey string
	// version is raised by each change of the entry, except by a sync.
	version int
	// open is, by the pool's index, whether the gate was open at the last sync. A gate that only the budget closes
	// counts as open: the end of a burst pod requeues its pods. So does one that a stale snapshot closes.
	open   []bool
	budget bool // the budget closed a gate
	// reason is why it is held, as of the last sync.
	reason reason
	// stale is set if the snapshot was stale: the pod is requeued after retryStale.
	stale bool
	// starting is set if the pod was held because the scheduler is starting. It is requeued once that is over, to get
	// the real reason.
	starting bool
	// reservation is the capacity that a new pod of a rollout waits for; nil if it waits for none.
	reservation *Reservation
	// waitsForRollout is the first Since of its reservations.
	waitsForRollout time.Time
	// reservedAt is when it was last requeued because a budget had room, if it has not been held since; zero otherwise.
	reservedAt time.Time
	// since is when the pod was last held, and tries how often it was requeued because its condition was missing.
	since time.Time
	tries int
}

// New returns Pods, none of which is known yet.
func New() *Pods {
	return &Pods{pods: map[types.UID]*heldPod{}, firstFailed: map[types.UID]time.Time{}, clocks: map[types.UID]unschedulableClock{}, added: map[types.UID]bool{},
		reserved: map[types.UID]bool{}, lastRequeued: map[queue]time.Time{}}
}

// Failed remembers that the pod was unschedulable at the time now, unless it was before, and whether for lack of
// resources. A failure for another reason restarts the time without resources.
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

// Trust uses the API's times from now on.
func (h *Pods) Trust(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted = true
	for _, entry := range h.pods {
		h.noteLocked(entry.pod, now)
	}
}

// Add remembers a pod that the decision holds since now, and its reservation if that closed the gate.
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

// Pod is a held pod's entry, for scheduling cycles.
type Pod struct {
	// Budget is set if a budget holds it.
	Budget bool
	// Reservation is its reservation; empty if it has none.
	Reservation Reservation
	// WaitsForRollout is when it first waited for pods of its rollout that are not terminating yet; zero if it never
	// did.
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

// Reservations returns the reservations of all pods but the one with the UID.
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

// RolloutChanged schedules a retry of the pods that wait for the rollout of the Deployment with the UID: once in
// rolloutRetryInterval, less often the more there are. It reports whether any retry is earlier than before.
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

// Update follows a pending pod, which was another before. It reports whether a held pod must be scheduled again because
// its burst annotation changed: the scheduling queue does not requeue it for that.
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

func (h *Pods) Remove(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, uid)
	delete(h.firstFailed, uid)
	delete(h.clocks, uid)
	delete(h.added, uid)
	delete(h.reserved, uid)
}

// Waiting has the times since which a pod has been waiting.
type Waiting struct {
	Unschedulable time.Time // zero if it is not known to be
	NoRoom        time.Time // zero if it is not known to lack resources
	Ignored       time.Time // when autoscalers last ignored it; zero if they never did
}

// Since returns the times since which the pod has been waiting, as of now.
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

// Count is the number of held pods.
func (h *Pods) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pods)
}

// UnknownToAPI returns when pods began to lack resources, where the API has another time: at most the n oldest. They
// are held pods that had scheduling gates, because their condition is False since then, and pods that failed for
// another reason, such as a gang, which may end while no scheduler leads.
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

// latest is the later of two times: when the pod became unschedulable, and when it began to lack resources.
func (h *Pods) latest(uid types.UID) time.Time {
	since := h.firstFailed[uid]
	if c := h.clocks[uid]; c.stopped {
		return c.tried
	} else if c.noRoom.After(since) {
		return c.noRoom
	}
	return since
}

// Restore takes over since when the pod has been unschedulable.
func (h *Pods) Restore(uid types.UID, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.firstFailed[uid] = since
}

// Any reports whether matters returns true for a held pod.
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

// Unreported returns the pods, by namespace/name, to requeue now because the write of their condition was lost:
// autoscalers see only pods with that condition. The time is when the next such pod is due.
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

// withoutConditionUntil is when the pod is tried again if the API does not say of it that it is unschedulable.
func (p *heldPod) withoutConditionUntil() time.Time {
	return p.since.Add(min(retryWithoutCondition<<min(p.tries, 10), maxRetryWithoutCondition))
}

// nameOf is the pod's namespace/name, by which the scheduler activates it.
func nameOf(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// each calls do for each held pod, under the lock. It releases the lock after every few, and entries may change then.
// So do keeps copies only. It may keep an entry to compare it with h.pods later: the pod was not held again if they are
// the same.
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
