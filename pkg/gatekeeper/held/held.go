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
	mu          sync.Mutex
	pods        map[types.UID]*heldPod
	firstFailed map[types.UID]time.Time // since when a pod has been unschedulable, held or not
	clocks      map[types.UID]stopwatch // what else is known of such a pod
	added       map[types.UID]bool      // held since the last look
	promised    map[types.UID]bool      // held, and promised something
	turned      map[queue]time.Time     // when pods of a queue were woken last
	// trusted says that what the API says of when a pod became unschedulable can be gone by: of pods that waited for
	// scheduling gates, it is not, and the last leader's word is needed.
	trusted bool
}

const (
	// retryUntold is how long the API may take to say of a held pod that it is unschedulable before the pod is tried
	// again. It doubles with each try, up to maxRetryUntold.
	retryUntold    = 10 * time.Second
	maxRetryUntold = 5 * time.Minute
	// retryUnseen is how soon a pod is tried again for which the scheduler was behind with the nodes, if no node wakes it
	// before.
	retryUnseen = 100 * time.Millisecond
)

// clockTolerance is by how much our clock and the condition's time of the same failure may differ.
const clockTolerance = 2 * time.Second

// stopwatch is what is known, of a pod that is unschedulable, of the time that autoscalers have had for it.
type stopwatch struct {
	// noRoom is since when it has been so for want of room, where that is not since it has been unschedulable.
	noRoom time.Time
	// stopped says that it was so for something else when it was last tried: a gang, a missing claim.
	stopped bool
	// tried is when that was last.
	tried time.Time
	// ignored is when it was last seen to be nominated, which autoscalers ignore.
	ignored time.Time
}

type heldPod struct {
	pod *v1.Pod
	// kind is the pod's, as kindOf says, and class what alike.View does.
	kind, class string
	// version rises when something of the entry changes but by a look at it.
	version int
	// open says, by the pool's index, whether the gate was open when last looked at. One that only the budget closed
	// counts as open: it is the end of a burst pod that wakes its pods. So does one that is closed until all nodes were
	// looked at.
	open   []bool
	budget bool // the budget closed a gate
	// reason is what holds it, when last looked at.
	reason reason
	// unseen says that the scheduler was behind with the nodes: the pod is tried again after retryUnseen.
	unseen bool
	// starting says that the pod was told that the scheduler is starting: it is tried again once that is over, to be told
	// what holds it.
	starting bool
	// promise is what a new pod of a rollout waits for; nil if it waits for nothing.
	promise *Promise
	// waitsForRollout is the first Since of its promises.
	waitsForRollout time.Time
	// woken is when it was woken last because a budget had room for it, if it has not been held since; zero otherwise.
	woken time.Time
	// since is when the pod was held last, and tries how often it was tried again because the API did not say so.
	since time.Time
	tries int
}

// New returns Pods, none of which is known yet.
func New() *Pods {
	return &Pods{pods: map[types.UID]*heldPod{}, firstFailed: map[types.UID]time.Time{}, clocks: map[types.UID]stopwatch{}, added: map[types.UID]bool{},
		promised: map[types.UID]bool{}, turned: map[queue]time.Time{}}
}

// Failed remembers that the pod was unschedulable at the time now, unless it is known to have been before: for want of
// room, or for something else, after which the time for which it has had no room begins anew.
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

// Trust goes by what the API says from now on.
func (h *Pods) Trust(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted = true
	for _, entry := range h.pods {
		h.noteLocked(entry.pod, now)
	}
}

// Add remembers the pod, held at the time now by the decision, and what it was promised, if that was what closed the
// gate.
func (h *Pods) Add(pod *v1.Pod, kind string, decision *gate.Decision, promise *Promise, now time.Time) {
	class := alike.View(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked(pod, now)
	tries := 0
	var waitsForRollout time.Time
	if before, ok := h.pods[pod.UID]; ok {
		tries, waitsForRollout = before.tries, before.waitsForRollout
	}
	if promise != nil && waitsForRollout.IsZero() {
		waitsForRollout = promise.Since
	}
	h.pods[pod.UID] = &heldPod{
		pod: pod, kind: kind, class: class, open: openPools(decision), budget: decision.Closes(gate.ReasonBudget), unseen: decision.Closes(gate.ReasonUnseen),
		starting: isStarting(decision), reason: reasonOf(decision), promise: promise, waitsForRollout: waitsForRollout, since: now, tries: tries,
	}
	h.added[pod.UID] = true
	if promise != nil {
		h.promised[pod.UID] = true
	} else {
		delete(h.promised, pod.UID)
	}
}

// Release takes back what the pod was promised.
func (h *Pods) Release(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[uid]; ok && entry.promise != nil {
		entry.promise = nil
		entry.version++
		delete(h.promised, uid)
	}
}

// Pod is what is known of a held pod.
type Pod struct {
	// Budget says that a budget holds it.
	Budget bool
	// Promise is what it was promised; empty if nothing was.
	Promise Promise
	// WaitsForRollout is since when it has been waiting, with whatever pauses, for what of its rollout is not ending yet;
	// zero if it has not.
	WaitsForRollout time.Time
}

// Lookup returns what is known of the pod, and whether it is held.
func (h *Pods) Lookup(uid types.UID) (Pod, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[uid]
	if !ok {
		return Pod{}, false
	}
	known := Pod{Budget: entry.budget, WaitsForRollout: entry.waitsForRollout}
	if entry.promise != nil {
		known.Promise = *entry.promise
	}
	return known, true
}

// Promises returns what pods other than the one with the UID were promised.
func (h *Pods) Promises(but types.UID) []PromisedPod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var promised []PromisedPod
	for uid := range h.promised {
		if entry := h.pods[uid]; uid != but {
			promised = append(promised, PromisedPod{entry.pod, *entry.promise})
		}
	}
	return promised
}

// RolloutChanged has the pods looked at again that wait for the rollout of the Deployment with the UID, each of them
// once in stirredAgain, and more rarely the more there are. It reports whether that is earlier than before for any.
func (h *Pods) RolloutChanged(deployment types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var waiting []*heldPod
	for uid := range h.promised {
		if entry := h.pods[uid]; entry.promise.Deployment == deployment {
			waiting = append(waiting, entry)
		}
	}
	after := max(stirredAgain, time.Duration(len(waiting))*TryEach)
	moved := false
	for _, entry := range waiting {
		if due := entry.since.Add(after); due.Before(entry.promise.Until) {
			entry.promise.Until, moved = due, true
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
			entry.class = alike.View(pod)
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
	delete(h.promised, uid)
}

// Waiting is since when a pod has been waiting.
type Waiting struct {
	Unschedulable time.Time // zero if it is not known to be
	NoRoom        time.Time // zero if it is not known to be so for want of room
	Ignored       time.Time // when autoscalers last ignored it; zero if they never did
}

// Since returns since when the pod has been waiting, as known by the time now.
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

// UnknownToAPI returns since when pods have been unschedulable for want of room of which the API says another time, for
// at most n pods: those that have been for the longest. They are held pods that waited for scheduling gates, as their
// condition is False since then, and pods that wait or waited for something else, such as a gang: what they wait for
// may come while nobody leads.
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

// latest is since when the pod has been unschedulable or, if that is later, since when for want of room, at the
// earliest.
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

// Unreported returns the pods, by namespace/name, that are to be tried again at the time now because the write of their
// condition was lost: autoscalers look at nothing else. A pod that was held for a while and that the API still does not
// call unschedulable is one. The time is when the next such pod is due.
func (h *Pods) Unreported(now time.Time) (map[string]*v1.Pod, time.Time) {
	pods := map[string]*v1.Pod{}
	var next time.Time
	h.each(func(_ types.UID, entry *heldPod) {
		if !gate.UnschedulableSince(entry.pod).IsZero() {
			return
		}
		if !now.Before(entry.untoldUntil()) {
			pods[nameOf(entry.pod)] = entry.pod
			entry.tries++
			entry.since = now
		}
		next = nodegroups.Earliest(next, entry.untoldUntil())
	})
	return pods, next
}

// untoldUntil is when the pod is tried again if the API does not say of it that it is unschedulable.
func (p *heldPod) untoldUntil() time.Time {
	return p.since.Add(min(retryUntold<<min(p.tries, 10), maxRetryUntold))
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
		if i%lookChunk == lookChunk-1 {
			h.mu.Unlock()
			h.mu.Lock()
		}
		if entry, ok := h.pods[uid]; ok {
			do(uid, entry)
		}
	}
}
