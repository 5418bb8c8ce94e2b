package held

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// Owners may delete a pod that waits for too long, and create it again. A new pod therefore continues the waiting of a
// held pod of the same template (alike.Heir) that was deleted at most heirsFor ago. Each deleted pod has one heir.
// maxDeleted bounds the deleted pods that are remembered.
const (
	heirsFor   = 10 * time.Minute
	maxDeleted = 5000
)

// Deleted records that the pod was deleted, and never bound. Autoscalers saw it from the time seen on. The caller also
// calls Remove.
func (h *Pods) Deleted(pod *v1.Pod, seen, now time.Time) {
	key := alike.Heir(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[pod.UID]
	if !ok || h.numDeleted >= maxDeleted && h.expireDeletedLocked(now) >= maxDeleted {
		return
	}
	w := h.sinceLocked(entry.pod, now)
	waited := max(0, now.Sub(nodegroups.Latest(nodegroups.Latest(w.NoRoom, w.Ignored), seen))) + w.Inherited
	if !w.NoRoom.IsZero() && waited > 0 {
		h.deleted[key] = append(h.deleted[key], published.Deleted{At: now, Waited: waited})
		h.numDeleted++
	}
}

// inheritLocked makes the pod, which has just become unschedulable, continue the waiting of a pod that was deleted before
// it was created, if there is one.
func (h *Pods) inheritLocked(pod *v1.Pod, now time.Time) {
	if h.numDeleted == 0 {
		return
	}
	key := alike.Heir(pod)
	all := h.deleted[key]
	if i := slices.IndexFunc(all, func(e published.Deleted) bool {
		return now.Sub(e.At) <= heirsFor && pod.CreationTimestamp.After(e.At.Add(-clockTolerance))
	}); i >= 0 {
		h.inherited[pod.UID] = all[i].Waited
		h.deleted[key] = slices.Delete(all, i, i+1)
		h.numDeleted--
	}
}

// expireDeletedLocked forgets pods that were deleted long ago, and returns how many are left.
func (h *Pods) expireDeletedLocked(now time.Time) int {
	h.numDeleted = 0
	maps.DeleteFunc(h.deleted, func(key string, all []published.Deleted) bool {
		h.deleted[key] = slices.DeleteFunc(all, func(e published.Deleted) bool { return now.Sub(e.At) > heirsFor })
		h.numDeleted += len(h.deleted[key])
		return len(h.deleted[key]) == 0
	})
	return h.numDeleted
}

// Heirs returns the deleted pods without heirs, and what pods have inherited, for the next leader.
func (h *Pods) Heirs(now time.Time) published.Heirs {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireDeletedLocked(now)
	all := published.Heirs{Deleted: make(map[string][]published.Deleted, len(h.deleted)), Inherited: maps.Clone(h.inherited)}
	for key, pods := range h.deleted {
		all.Deleted[key] = slices.Clone(pods)
	}
	return all
}

// RestoreDeleted adds the deleted pods that Heirs of the last leader returned. Pods that this process has tried before
// continue their waiting, too. Restore restores what pods have inherited, and must be called afterwards.
func (h *Pods) RestoreDeleted(all map[string][]published.Deleted, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, pods := range all {
		h.deleted[key] = append(h.deleted[key], pods...)
		h.numDeleted += len(pods)
	}
	for _, entry := range h.pods {
		h.inheritLocked(entry.pod, now)
	}
}
