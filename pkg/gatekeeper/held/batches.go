package held

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Held pods are requeued in batches, so that new pods get their turn between two batches. A batch has as many pods as
// the scheduler tries in batchTime, as measured with the last batch: at least minBatch and at most maxBatch. The next
// batch follows when the scheduler has tried all pods of the last batch, but after batchTimeout at the latest.
const (
	firstBatch, minBatch, maxBatch = 100, 10, 1000

	batchTime    = 100 * time.Millisecond
	batchTimeout = time.Second
)

// batches has the held pods that wait for a batch, and the last batch.
type batches struct {
	waiting map[types.UID]*waiting
	added   []*waiting // pods of waiting that are not in sorted yet
	sorted  []*waiting // only NextBatch uses it, without the lock; includes pods that no longer wait for a batch

	untried     map[types.UID]bool // pods of the last batch
	pods, limit int                // the number of pods in the last batch, and the maximum
	sent, tried time.Time          // when the last batch was requeued, and when one of its pods was last tried
}

// waiting is a pod that waits for a batch.
type waiting struct {
	turn
	always bool // requeue the pod even if it is held again before
	opened bool // requeue the pod only if a gate is still open
}

func newBatches() batches { return batches{waiting: map[types.UID]*waiting{}, limit: firstBatch} }

// Enqueue makes the held pods wait for a batch. A pod does not wait any longer once it is no longer held. Unless always
// is set, this also applies to a pod that is held again, or whose gates close: Reconsider and WithinBudgets then decide
// for the pod again.
func (h *Pods) Enqueue(pods map[string]*v1.Pod, always bool) {
	i := 0
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pod := range pods {
		if i++; i%syncChunk == 0 {
			h.mu.Unlock()
			h.mu.Lock()
		}
		entry, ok := h.pods[pod.UID]
		if !ok {
			continue
		}
		before := h.batches.waiting[pod.UID]
		if before != nil && before.entry == entry && (before.always || !always) {
			continue
		}
		w := &waiting{turn: h.turnOf(entry), always: always || before != nil && before.always, opened: slices.Contains(entry.open, true)}
		h.batches.waiting[pod.UID] = w
		h.batches.added = append(h.batches.added, w)
	}
}

// NextBatch returns the pods of the next batch, by namespace/name. The caller requeues these pods. If no pod waits or
// the next batch is not due yet, NextBatch returns no pods. Only one goroutine may call NextBatch.
func (h *Pods) NextBatch(now time.Time) map[string]*v1.Pod {
	b := &h.batches
	h.mu.Lock()
	added := b.added
	b.added = nil
	h.mu.Unlock()
	if len(added) > 0 {
		b.sorted = append(b.sorted, added...)
		slices.SortFunc(b.sorted, func(a, b *waiting) int { return inOrder(a.turn, b.turn) })
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(b.untried) > 0 && now.Before(b.sent.Add(batchTimeout)) {
		return nil
	}
	b.resize()
	pods := map[string]*v1.Pod{}
	for len(b.sorted) > 0 && len(pods) < b.limit {
		w := b.sorted[0]
		b.sorted = b.sorted[1:]
		uid := w.pod.UID
		if b.waiting[uid] != w {
			continue
		}
		delete(b.waiting, uid)
		switch entry := h.pods[uid]; {
		case !w.always && entry != w.entry:
		case !w.always && w.opened && !slices.Contains(entry.open, true):
			entry.reservedAt = time.Time{} // the pod gets budget when the gate opens again
		default:
			if !entry.reservedAt.IsZero() {
				entry.reservedAt = now
			}
			pods[nameOf(entry.pod)] = entry.pod
			b.untried[uid] = true
		}
	}
	if len(b.sorted) == 0 {
		b.sorted = nil // frees the pods
	}
	b.pods, b.sent, b.tried = len(pods), now, now
	return pods
}

// resize sets the size of the next batch by how long the last batch took. The size at most doubles.
func (b *batches) resize() {
	if tried := b.pods - len(b.untried); b.pods > 0 {
		took := max(b.tried.Sub(b.sent), time.Millisecond)
		b.limit = min(max(int(time.Duration(tried)*batchTime/took), minBatch), 2*b.limit, maxBatch)
	}
	b.pods, b.untried = 0, map[types.UID]bool{}
}

// Tried records that a scheduling cycle has tried the pod, or that the pod was bound or deleted. It reports whether the
// pod was the last untried pod of a batch.
func (h *Pods) Tried(uid types.UID, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.batches.untried[uid] {
		return false
	}
	delete(h.batches.untried, uid)
	h.batches.tried = now
	return len(h.batches.untried) == 0
}
