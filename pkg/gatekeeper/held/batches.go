package held

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

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

// WhileOpen, Always and Last are the ways to wait for a batch. With WhileOpen, a pod stops waiting when its gates close
// or when it is held again. Reconsider then decides for the pod again. With Always, a pod waits until its batch. With
// Last, a pod waits until its batch, and pods that wait in another way go first.
const (
	WhileOpen = 1 << iota
	Always
	Last
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

// Enqueue makes the pod wait for its batch if the pod is held. how is WhileOpen, Always or Last. If no gate is open for
// the pod, WhileOpen counts as Always.
func (h *Pods) Enqueue(pod *v1.Pod, how int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[pod.UID]; ok {
		if how == WhileOpen && !slices.Contains(entry.open, true) {
			how = Always
		}
		if entry.queued == 0 || entry.queued == Last && how != Last {
			turn := h.turnOf(entry)
			if how == Last {
				turn.last = 1
			}
			h.batches.added = append(h.batches.added, turn)
		}
		entry.queued |= how
	}
}

// NextBatch returns the pods of the next batch, by namespace/name. The caller requeues these pods. If no pod waits or
// the next batch is not due yet, NextBatch returns no pods. Until the time again, if it is not zero, NextBatch returns no
// pods unless Tried or Ended returns true. Only one goroutine may call NextBatch.
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
		if entry := h.pods[b.sorted[0].pod.UID]; entry != nil && entry.queued != 0 {
			entry.queued, entry.lastCycle = 0, now
			for _, at := range []*time.Time{&entry.reservedAt, &entry.chosenAt} { // a long queue does not end a reservation
				if !at.IsZero() {
					*at = now
				}
			}
			pods[nameOf(entry.pod)], b.last[entry.pod.UID], b.untried[entry.pod.UID] = entry.pod, true, true
		}
		b.sorted = b.sorted[1:]
	}
	if b.pods, b.sent, b.tried, b.ended = len(pods), now, now, now; b.pods > 0 {
		again = now.Add(batchTimeout)
	}
	return pods, again
}

// Tried records that a scheduling cycle tries the pod. It reports whether the next batch is due because of it.
func (h *Pods) Tried(uid types.UID, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := &h.batches
	if !b.untried[uid] {
		return false
	}
	delete(b.untried, uid)
	b.tried = now
	return len(b.untried)+len(b.binding) == 0
}

// Binding records that the pod is being bound.
func (h *Pods) Binding(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batches.last[uid] {
		h.batches.binding[uid], h.batches.bound = true, true
	}
}

// Ended records that a scheduling cycle of the pod failed, or that the pod was bound or deleted. It reports whether the
// next batch is due because of it.
func (h *Pods) Ended(uid types.UID, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := &h.batches
	if !b.last[uid] {
		return false
	}
	delete(b.last, uid)
	delete(b.untried, uid)
	delete(b.binding, uid)
	b.ended = now
	return len(b.untried)+len(b.binding) == 0
}
