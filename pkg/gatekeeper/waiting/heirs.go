package waiting

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// Owners may delete a pod that waits for too long, and create it again. A new pod therefore continues the waiting of a
// pod of the same template (alike.Heir) that was deleted at most heirsFor ago. Each deleted pod has one heir.
// maxDeleted bounds the deleted pods that are remembered.
const (
	heirsFor   = 10 * time.Minute
	maxDeleted = 5000
)

// Deleted records that the pod was deleted, and never bound. Autoscalers saw it from the time seen on. The caller also
// calls Remove.
func (r *Room) Deleted(pod *v1.Pod, seen, now time.Time) {
	key := alike.Heir(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clocks[pod.UID]
	if c.pod == nil || r.numDeleted >= maxDeleted && r.expireDeletedLocked(now) >= maxDeleted {
		return
	}
	w := r.sinceLocked(c.pod, now)
	waited := max(0, now.Sub(nodegroups.Latest(w.NoRoom, w.Ignored, seen))) + w.Inherited
	if !w.NoRoom.IsZero() && waited > 0 {
		r.deleted[key] = append(r.deleted[key], published.Deleted{At: now, Waited: waited})
		r.numDeleted++
	}
}

// inheritLocked makes the pod of the clock, which has just become unschedulable, continue the waiting of a pod that was
// deleted before it was created, if there is one.
func (r *Room) inheritLocked(c *clock, now time.Time) {
	if r.numDeleted == 0 {
		return
	}
	key := alike.Heir(c.pod)
	all := r.deleted[key]
	if i := slices.IndexFunc(all, func(e published.Deleted) bool {
		return now.Sub(e.At) <= heirsFor && c.pod.CreationTimestamp.After(e.At.Add(-ClockTolerance))
	}); i >= 0 {
		c.inherited = all[i].Waited
		r.deleted[key] = slices.Delete(all, i, i+1)
		r.numDeleted--
	}
}

// expireDeletedLocked forgets pods that were deleted long ago, and returns how many are left.
func (r *Room) expireDeletedLocked(now time.Time) int {
	r.numDeleted = 0
	maps.DeleteFunc(r.deleted, func(key string, all []published.Deleted) bool {
		r.deleted[key] = slices.DeleteFunc(all, func(e published.Deleted) bool { return now.Sub(e.At) > heirsFor })
		r.numDeleted += len(r.deleted[key])
		return len(r.deleted[key]) == 0
	})
	return r.numDeleted
}

// Heirs returns the deleted pods without heirs, and what pods have inherited, for the next leader.
func (r *Room) Heirs(now time.Time) published.Heirs {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireDeletedLocked(now)
	all := published.Heirs{Deleted: make(map[string][]published.Deleted, len(r.deleted)), Inherited: map[types.UID]time.Duration{}}
	for key, pods := range r.deleted {
		all.Deleted[key] = slices.Clone(pods)
	}
	for uid, c := range r.clocks {
		if c.inherited > 0 {
			all.Inherited[uid] = c.inherited
		}
	}
	return all
}

// RestoreDeleted adds the deleted pods that Heirs of the last leader returned. Pods that this process has tried before
// continue their waiting, too, unless Restore, which must be called before, has restored what they have inherited.
func (r *Room) RestoreDeleted(all map[string][]published.Deleted, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, pods := range all {
		r.deleted[key] = append(r.deleted[key], pods...)
		r.numDeleted += len(pods)
	}
	for uid, c := range r.clocks {
		if c.pod != nil && c.inherited == 0 {
			r.inheritLocked(&c, now)
			r.clocks[uid] = c
		}
	}
}
