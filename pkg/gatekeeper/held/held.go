// Package held keeps the pods that the gate holds back. It records the reason and the waiting time of each pod, and
// decides which pods to requeue.
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
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
)

// ReasonStarting is the reason of every regular pool until the gatekeeper first evaluates the pools.
var ReasonStarting = nodegroups.Reason{Code: "Starting", Sentence: "the scheduler is starting"}

// Pods is the set of pods that the gate holds back. Its methods are safe for concurrent use.
type Pods struct {
	mu           sync.Mutex
	pods         map[types.UID]*heldPod
	firstFailed  map[types.UID]time.Time          // when each pod became unschedulable; includes pods that are not held
	clocks       map[types.UID]unschedulableClock // of all pods that have failed; includes pods that are not held
	added        map[types.UID]bool               // pods for which the next sync with onlyNew decides
	reserved     map[types.UID]bool               // held pods with a reservation
	lastRequeued map[queue]time.Time              // when pods of each queue were last requeued
	batches      batches
	deleted      map[string][]published.Deleted // by alike.Heir, the deleted pods without heirs, the first first
	numDeleted   int
	inherited    map[types.UID]time.Duration // for how long the pod had waited whose waiting each heir continues
	// trusted is set once Pods may use the times in the pods' conditions. For pods that had scheduling gates, these
	// times are too early. The last leader's published times must therefore be restored before trusted is set.
	trusted bool
}

const (
	// retryWithoutCondition is how long a held pod may lack the condition Unschedulable before the pod is requeued. The
	// time doubles with each of these requeues, up to maxRetryWithoutCondition.
	retryWithoutCondition    = 10 * time.Second
	maxRetryWithoutCondition = 5 * time.Minute
	// retryNominated replaces retryWithoutCondition for a held pod that is nominated to a node that does not exist.
	retryNominated = time.Second
	// If a stale snapshot closed the gate, the held pod is requeued after retryStale. A node event may requeue the pod
	// earlier.
	retryStale = 100 * time.Millisecond
	// retryHeld is how long after its last cycle a held pod is requeued at the latest. The scheduling queue would requeue
	// all such pods at once after 5 min.
	retryHeld = 4 * time.Minute
)

// The scheduler's clock and the pod's condition may show different times of the same failure. clockTolerance bounds the
// difference.
const clockTolerance = 2 * time.Second

// unschedulableClock tracks since when autoscalers could scale up for an unschedulable pod.
type unschedulableClock struct {
	// noRoom is when the pod began to lack resources. It is set only if the pod had failed for another reason before, or
	// is a member of a gang.
	noRoom time.Time
	// stopped is set if the pod last failed for a reason other than a lack of resources, such as an incomplete gang or
	// a missing PVC.
	stopped bool
	// tried is when the pod last failed for a reason other than a lack of resources.
	tried time.Time
	// ignored is when the pod last had a nominated node, or lacked resources again after it had fit a node. Autoscalers
	// ignore pods with a nominated node.
	ignored time.Time
	member  bool // alike.InGang
}

type heldPod struct {
	pod *v1.Pod
	// autoscalerKey is the pod's alike.Autoscaler key, and viewKey is its alike.View key.
	autoscalerKey, viewKey string
	// version increases with each change of the entry. Changes by a sync do not increase it.
	version int
	// open is, by the pool's index, whether the last decision opened the gate. If only the budget or a stale snapshot
	// closes a gate, the gate counts as open, because the pod is requeued by WithinBudgets or after retryStale. If a
	// quota opens a gate for a few pods only, the gate counts as open once the pod has been requeued.
	open []bool
	// budget is, by the pool's index, whether the pod waits for the pool's budget. Either the budget closed the gate
	// when the pod was last held, or the gate of a pool with a budget has opened since.
	budget []bool
	tried  time.Time // when the pod was last held
	// lastCycle is when the pod's last cycle failed, or when the pod was last sent with a batch.
	lastCycle time.Time
	// byLoop is set if the scheduling queue does not requeue the pod when a node changes or when a pod ends.
	// WithinSpaces then requeues it. chosenAt is when WithinSpaces last chose the pod, and chosenFor is the node's name.
	byLoop    bool
	chosenAt  time.Time
	chosenFor string
	// reserved is set from the time when a node is reserved for the pod until the pod's next cycle fails.
	reserved bool
	// reason is why the pod is held, according to the last decision that closed a gate or opened it in vain.
	reason reason
	// stale is set if a stale snapshot closed a gate. The pod is then requeued after retryStale.
	stale bool
	// starting is set if the pod was held because the scheduler was starting. The pod is requeued once the scheduler
	// has started, to get its actual reason.
	starting bool
	// queued has the ways in which the pod waits for its batch, such as WhileOpen|Always; 0 if it does not wait for one.
	queued int
	// reservation is the capacity that the pod waits for; nil if there is none.
	reservation *Reservation
	// waitsForRollout is when the pod first waited for pods of its rollout that were not terminating yet
	// (Reservation.Since). It is zero if the pod never waited for such pods.
	waitsForRollout time.Time
	// reservedAt is when the pod was enqueued because a budget had room for the pod. It becomes zero when the pod's
	// gates close, and when a scheduling cycle of the pod fails.
	reservedAt time.Time
	// since is when the pod was last held. If the pod is requeued because autoscalers ignore it (Ignored), since becomes
	// the time of the requeue. tries counts these requeues.
	since time.Time
	tries int
}

// New returns Pods without entries.
func New() *Pods {
	return &Pods{pods: map[types.UID]*heldPod{}, firstFailed: map[types.UID]time.Time{}, clocks: map[types.UID]unschedulableClock{}, added: map[types.UID]bool{},
		reserved: map[types.UID]bool{}, lastRequeued: map[queue]time.Time{}, deleted: map[string][]published.Deleted{}, inherited: map[types.UID]time.Duration{}}
}

// Failed records that a scheduling cycle of the pod failed at the time now. If Pods already has the time at which the
// pod became unschedulable, this time stays. wantsRoom is set if the pod lacks resources. A failure for another reason
// resets the time at which the pod began to lack resources. If the pod has a node, it fit the node and was not bound,
// for example because a Permit plugin rejected it. The time at which the pod began to lack resources then stays, so
// that holdLimit ends even if the members of a gang fit in turn. The pod's next lack of resources restarts only the
// wait for a scale-up.
func (h *Pods) Failed(pod *v1.Pod, wantsRoom bool, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	noRoom := h.sinceLocked(pod, now).NoRoom
	h.noteLocked(pod, now)
	if entry, ok := h.pods[pod.UID]; ok {
		entry.byLoop, entry.reserved, entry.lastCycle = false, false, now
		entry.chosenAt, entry.tried = time.Time{}, now // other room is there for the pod at once
	}
	c := h.clocks[pod.UID]
	c.member = alike.InGang(pod)
	switch {
	case pod.Spec.NodeName != "":
		if !c.stopped {
			c.noRoom = noRoom
		}
		c.stopped, c.tried = true, now
	case !wantsRoom:
		c.stopped, c.tried, c.noRoom = true, now, time.Time{}
	case c.stopped && !c.noRoom.IsZero():
		c.stopped, c.ignored = false, now
	case c.stopped || c.member && noRoom.IsZero(): // the gang may have been incomplete before
		c.stopped, c.noRoom = false, now
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
		h.inheritLocked(pod, now)
	case h.trusted:
		h.firstFailed[pod.UID] = since
	}
}

// Trust makes Pods use the times in the pods' conditions from now on.
func (h *Pods) Trust(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted = true
	for _, entry := range h.pods {
		h.noteLocked(entry.pod, now)
	}
}

// Add records that the decision holds the pod back as of now. If a reservation closed the gate, Add also records the
// reservation.
func (h *Pods) Add(pod *v1.Pod, kind string, decision *gate.Decision, reservation *Reservation, now time.Time) {
	class := alike.View(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(pod, now)
	before := cmp.Or(h.pods[pod.UID], &heldPod{})
	waitsForRollout := before.waitsForRollout
	open, budget := openPools(decision)
	if reservation != nil && waitsForRollout.IsZero() {
		waitsForRollout = reservation.Since
	}
	h.pods[pod.UID] = &heldPod{
		pod: pod, autoscalerKey: kind, viewKey: class, open: open, budget: budget, queued: before.queued &^ (WhileOpen | Last), tried: now, lastCycle: now, stale: decision.Closes(gate.ReasonSnapshotStale),
		starting: isStarting(decision), reason: reasonOf(decision), reservation: reservation, waitsForRollout: waitsForRollout, since: now, tries: before.tries,
	}
	h.added[pod.UID] = true
	if reservation != nil {
		h.reserved[pod.UID] = true
	} else {
		delete(h.reserved, pod.UID)
	}
}

// ByLoop records that WithinSpaces, and not the scheduling queue, requeues the pod. The record ends when the pod's next
// cycle fails. ByLoop reports whether the pod is held.
func (h *Pods) ByLoop(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[uid]
	if ok {
		entry.byLoop = true
	}
	return ok
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
	// Budget is set if a budget holds the pod. ByLoop is set if WithinSpaces requeues the pod.
	Budget, ByLoop bool
	// Open is, by the pool's index, whether the last decision opened the gate without regard to budgets.
	Open []bool
	// Reservation is the pod's reservation; empty if it has none.
	Reservation Reservation
	// WaitsForRollout is the time at which the pod's wait for other pods of its rollout began. Only pods that were not
	// terminating then count. It is zero if the pod never waited for such pods.
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
	known := Pod{Budget: slices.Contains(entry.budget, true), ByLoop: entry.byLoop, Open: slices.Clone(entry.open), WaitsForRollout: entry.waitsForRollout}
	if entry.reservation != nil {
		known.Reservation = *entry.reservation
	}
	return known, true
}

// Reservations returns the reservations of all held pods, except for the pod with the UID but.
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

// RolloutChanged brings forward the retries of the pods that wait for the Deployment's rollout. The next retry of a pod
// is then due rolloutRetryInterval after the pod was last held. If many pods wait, the interval is longer (TryEach).
// RolloutChanged reports whether it brought forward any retry.
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

// Update processes a change of a pending pod. It reports whether the pod is held and its annotation for bursting or
// for its order, its requests or its tolerations have changed. If so, the caller must requeue the pod, because the scheduling queue may not requeue
// it.
func (h *Pods) Update(before, pod *v1.Pod, now time.Time) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[pod.UID]; ok {
		changed = entry.pod.Annotations[pool.BurstAnnotation] != pod.Annotations[pool.BurstAnnotation] ||
			entry.pod.Annotations[pool.OrderAnnotation] != pod.Annotations[pool.OrderAnnotation]
		entry.pod = pod
		entry.version++
		if !equality.Semantic.DeepEqual(before.Spec, pod.Spec) || !maps.Equal(before.Annotations, pod.Annotations) {
			view := alike.View(pod)
			if view != entry.viewKey { // the pod may fit other node groups now, and autoscalers have not tried it there
				c := h.clocks[pod.UID]
				c.ignored, changed = now, true
				h.clocks[pod.UID] = c
			}
			entry.viewKey = view
		}
	}
	if _, known := h.firstFailed[pod.UID]; known && (before.Status.NominatedNodeName != "" || pod.Status.NominatedNodeName != "") {
		c := h.clocks[pod.UID]
		c.ignored = now
		h.clocks[pod.UID] = c
	}
	return changed
}

// Remove forgets the pod. It reports whether the pod was held.
func (h *Pods) Remove(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, isHeld := h.pods[uid]
	delete(h.pods, uid)
	delete(h.firstFailed, uid)
	delete(h.clocks, uid)
	delete(h.inherited, uid)
	delete(h.added, uid)
	delete(h.reserved, uid)
	return isHeld
}

// Waiting has the times since which a pod has waited.
type Waiting struct {
	Unschedulable time.Time // when the pod became unschedulable; zero if unknown
	NoRoom        time.Time // when the pod began to lack resources; zero if unknown
	Ignored       time.Time // when autoscalers last ignored the pod; zero if they never ignored it
	// Inherited is for how long a deleted pod had waited whose waiting the pod continues.
	Inherited time.Duration
}

// Since returns the times since which the pod has waited, as of now.
func (h *Pods) Since(pod *v1.Pod, now time.Time) Waiting {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sinceLocked(pod, now)
}

func (h *Pods) sinceLocked(pod *v1.Pod, now time.Time) Waiting {
	c := h.clocks[pod.UID]
	since, ok := h.firstFailed[pod.UID]
	w := Waiting{Unschedulable: since, NoRoom: since, Ignored: c.ignored, Inherited: h.inherited[pod.UID]}
	if !ok && h.trusted {
		w.Unschedulable, w.NoRoom = gate.UnschedulableSince(pod), gate.NoRoomSince(pod)
	}
	if c.stopped {
		w.NoRoom = time.Time{}
	} else if !c.noRoom.IsZero() {
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

// UnknownToAPI returns, for the next leader, since when pods have waited if their conditions do not show it. The times
// are rounded up to seconds. There are three groups of pods. The first group are held pods whose condition shows an
// earlier time. These pods had scheduling gates, or once failed for a reason other than a lack of resources. The second
// group are pods that are not held and last failed for such a reason, for example a missing PVC. The PVC may appear
// while no scheduler leads. The third group are members of gangs, but only those that last lacked resources. ignored has
// when autoscalers last ignored held pods.
func (h *Pods) UnknownToAPI() (known, ignored map[types.UID]time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, ignored = map[types.UID]time.Time{}, map[types.UID]time.Time{}
	for uid, c := range h.clocks {
		entry, publish := h.pods[uid], c.stopped != c.member // for a member of a gang: if it last lacked resources
		if (entry != nil || c.member) && !c.stopped && !c.ignored.IsZero() {
			ignored[uid] = roundUp(c.ignored)
		}
		if entry != nil && !c.member {
			condition := gate.ScheduledCondition(entry.pod)
			publish = condition != nil && h.latest(uid).Sub(condition.LastTransitionTime.Time) > clockTolerance
		}
		if publish {
			known[uid] = roundUp(h.latest(uid))
		}
	}
	return known, ignored
}

func roundUp(t time.Time) time.Time { return t.Add(time.Second - 1).Truncate(time.Second).UTC() }

// latest returns the pod's time for UnknownToAPI. If the pod last failed for a reason other than a lack of resources,
// latest returns the time of this failure. Otherwise, latest returns when the pod became unschedulable or, if that was
// later, began to lack resources.
func (h *Pods) latest(uid types.UID) time.Time {
	since, c := h.firstFailed[uid], h.clocks[uid]
	switch {
	case c.stopped:
		return c.tried
	case c.noRoom.After(since):
		return c.noRoom
	}
	return since
}

// Restore sets the time at which the pod became unschedulable, when autoscalers last ignored it, and what it has inherited,
// as UnknownToAPI and Heirs returned them. Zero values change nothing.
func (h *Pods) Restore(uid types.UID, since, ignored time.Time, inherited time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if inherited > 0 {
		h.inherited[uid] = inherited
	}
	c, ok := h.clocks[uid]
	if !since.IsZero() {
		h.firstFailed[uid] = since
		if ok && c.tried.IsZero() { // the pod has only lacked resources
			c.noRoom = time.Time{}
			h.clocks[uid] = c
		}
	}
	if ignored.After(c.ignored) {
		c.ignored = ignored
		h.clocks[uid] = c
	}
}

// Any reports whether matters returns true for at least one held pod.
func (h *Pods) Any(matters func(*v1.Pod) bool) bool {
	found := false
	h.each(func(_ types.UID, entry *heldPod) { found = found || matters(entry.pod) })
	return found
}

// Ignored returns, by namespace/name, held pods that autoscalers ignore, although they wait for an autoscaler. The caller
// requeues these pods. A pod may have lacked the condition Unschedulable for too long, because its write was lost. Or
// the node to which the pod is nominated does not exist any more, and the pod's next cycle clears the nomination. Ignored
// also returns when the next pod is due.
func (h *Pods) Ignored(exists func(node string) bool, now time.Time) (map[string]*v1.Pod, time.Time) {
	pods := map[string]*v1.Pod{}
	var next time.Time
	h.each(func(_ types.UID, entry *heldPod) {
		retry := retryWithoutCondition
		if node := entry.pod.Status.NominatedNodeName; node != "" && !exists(node) {
			retry = retryNominated
		} else if !gate.UnschedulableSince(entry.pod).IsZero() {
			return
		}
		if !now.Before(entry.ignoredUntil(retry)) {
			pods[nameOf(entry.pod)] = entry.pod
			entry.tries++
			entry.since = now
		}
		next = nodegroups.Earliest(next, entry.ignoredUntil(retry))
	})
	return pods, next
}

// Untried returns, by namespace/name, the held pods whose last cycle was at least retryHeld ago, and when the next pod
// is due.
func (h *Pods) Untried(now time.Time) (map[string]*v1.Pod, time.Time) {
	pods := map[string]*v1.Pod{}
	var next time.Time
	h.each(func(_ types.UID, entry *heldPod) {
		if due := entry.lastCycle.Add(retryHeld); now.Before(due) {
			next = nodegroups.Earliest(next, due)
		} else {
			pods[nameOf(entry.pod)] = entry.pod
		}
	})
	return pods, next
}

// ignoredUntil returns when the pod is requeued if autoscalers still ignore it. retry is the time after its first try.
func (p *heldPod) ignoredUntil(retry time.Duration) time.Time {
	return p.since.Add(min(retry<<min(p.tries, 10), maxRetryWithoutCondition))
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
