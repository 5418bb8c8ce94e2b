package held

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Held pods are requeued in batches, so that new pods get their turn between two batches. A batch has as many pods as
// the scheduler binds or fails to place in batchTime, as measured with the last batch: at least minBatch and at most
// maxBatch. The next batch follows when all pods of the last batch are bound or have failed, but BindTimeout after the
// last try or batchTimeout after the batch at the latest. So new pods also get their turn at the API server.
const (
	firstBatch, minBatch, maxBatch = 25, 10, 1000
	batchTime, batchTimeout        = 50 * time.Millisecond, time.Second
	// BindTimeout is how long the next batch waits for the bindings of the last batch. Pods may wait longer for volumes,
	// or for the other members of a gang.
	BindTimeout = 100 * time.Millisecond
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
	added  []turn             // pods that are not in sorted yet
	sorted []turn             // only NextBatch uses it; includes pods that no longer wait for their batch
	last   map[types.UID]bool // the untried pods of the last batch
	tries  map[types.UID]bool // the other pods of the last batch that neither failed nor are bound

	pods, limit int       // the number of pods in the last batch, and the maximum
	sent, tried time.Time // when the last batch was requeued, and when one of its pods was last tried or bound
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
// the next batch is not due yet, NextBatch returns no pods. Only one goroutine may call NextBatch.
func (h *Pods) NextBatch(now time.Time) map[string]*v1.Pod {
	b, pods := &h.batches, map[string]*v1.Pod{}
	h.mu.Lock()
	b.sorted, b.added = append(b.sorted, b.added...), nil
	h.mu.Unlock()
	slices.SortFunc(b.sorted, inOrder) // without the lock
	h.mu.Lock()
	defer h.mu.Unlock()
	if (len(b.last) > 0 || len(b.tries) > 0 && now.Before(b.tried.Add(BindTimeout))) && now.Before(b.sent.Add(batchTimeout)) {
		return nil
	}
	if len(b.tries) > 0 {
		b.tried = now
	}
	if tried, took := b.pods-len(b.last), max(b.tried.Sub(b.sent), time.Millisecond); b.pods > 0 {
		b.limit = min(max(int(time.Duration(tried)*batchTime/took), minBatch), maxBatch)
	}
	b.last, b.tries = map[types.UID]bool{}, map[types.UID]bool{}
	for len(b.sorted) > 0 && len(pods) < cmp.Or(b.limit, firstBatch) {
		if entry := h.pods[b.sorted[0].pod.UID]; entry != nil && entry.queued != 0 {
			entry.queued, entry.lastCycle = 0, now
			for _, at := range []*time.Time{&entry.reservedAt, &entry.chosenAt} { // a long queue does not end a reservation
				if !at.IsZero() {
					*at = now
				}
			}
			pods[nameOf(entry.pod)], b.last[entry.pod.UID] = entry.pod, true
		}
		b.sorted = b.sorted[1:]
	}
	b.pods, b.sent, b.tried = len(pods), now, now
	return pods
}

// Tried records that a scheduling cycle tries the pod. With ended, the cycle has failed, or the pod was bound or deleted.
// Tried reports whether the pod was the last of a batch for which the next batch waits.
func (h *Pods) Tried(uid types.UID, ended bool, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := &h.batches
	if !b.last[uid] && !b.tries[uid] {
		return false
	}
	delete(b.last, uid)
	if b.tries[uid] = true; ended {
		delete(b.tries, uid)
	}
	b.tried = now
	return len(b.last)+len(b.tries) == 0
}
