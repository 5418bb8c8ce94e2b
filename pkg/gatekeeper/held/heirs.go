package held

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/published"
)

// Owners may delete a pod that waits for too long, and create it again. A new pod therefore continues the waiting of a
// held pod of the same template that was deleted at most heirsFor ago. Each deleted pod has one heir. maxEnded bounds
// the deleted pods that are remembered.
const (
	heirsFor = 10 * time.Minute
	maxEnded = 5000
)

// heirKey returns a key of the pods that continue each other's waiting: their namespace, controller and template.
func heirKey(pod *v1.Pod) string {
	return pod.Namespace + "/" + cmp.Or(alike.Template(pod), alike.View(pod))
}

// Deleted records that the pod was deleted, and never bound. The caller also calls Remove.
func (h *Pods) Deleted(pod *v1.Pod, now time.Time) {
	key := heirKey(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[pod.UID]
	if !ok || h.numEnded >= maxEnded && h.expireEndedLocked(now) >= maxEnded {
		return
	}
	if w := h.sinceLocked(entry.pod, now); !w.NoRoom.IsZero() {
		h.ended[key] = append(h.ended[key], published.Ended{At: now, Waited: now.Sub(w.NoRoom)})
		h.numEnded++
	}
}

// inheritLocked returns for how long a deleted pod had waited whose waiting the pod continues; 0 if there is none.
func (h *Pods) inheritLocked(pod *v1.Pod, now time.Time) time.Duration {
	if h.numEnded == 0 {
		return 0
	}
	key := heirKey(pod)
	all := h.ended[key]
	i := slices.IndexFunc(all, func(e published.Ended) bool { return now.Sub(e.At) <= heirsFor })
	if i < 0 {
		return 0
	}
	waited := all[i].Waited
	h.ended[key] = slices.Delete(all, i, i+1)
	h.numEnded--
	return waited
}

// expireEndedLocked forgets pods that were deleted long ago, and returns how many are left.
func (h *Pods) expireEndedLocked(now time.Time) int {
	h.numEnded = 0
	maps.DeleteFunc(h.ended, func(key string, all []published.Ended) bool {
		h.ended[key] = slices.DeleteFunc(all, func(e published.Ended) bool { return now.Sub(e.At) > heirsFor })
		h.numEnded += len(h.ended[key])
		return len(h.ended[key]) == 0
	})
	return h.numEnded
}

// DeletedPods returns the deleted pods without heirs, for the next leader.
func (h *Pods) DeletedPods(now time.Time) map[string][]published.Ended {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireEndedLocked(now)
	all := make(map[string][]published.Ended, len(h.ended))
	for key, ended := range h.ended {
		all[key] = slices.Clone(ended)
	}
	return all
}

// RestoreDeleted adds what DeletedPods of the last leader returned.
func (h *Pods) RestoreDeleted(all map[string][]published.Ended) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, ended := range all {
		h.ended[key] = append(h.ended[key], ended...)
		h.numEnded += len(ended)
	}
}
