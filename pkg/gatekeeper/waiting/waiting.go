// Package waiting keeps since when each pod has waited for a node: from its first failed cycle until it is bound or
// deleted, whether or not the gate holds it back.
package waiting

import (
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// ClockTolerance bounds the difference between the scheduler's clock and a pod's condition for the same failure.
const ClockTolerance = 2 * time.Second

// Room is the set of waiting pods. Its methods are safe for concurrent use.
type Room struct {
	mu         sync.Mutex
	clocks     map[types.UID]clock
	deleted    map[string][]published.Deleted // by alike.Heir, the deleted pods without heirs, the first first
	numDeleted int
	// trusted is set once Room may use the times in the pods' conditions. For pods that had scheduling gates, these
	// times are too early. The last leader's published times must therefore be restored before trusted is set.
	trusted bool
}

// clock tracks since when a pod has waited, and since when autoscalers could scale up for it.
type clock struct {
	pod   *v1.Pod   // nil if the pod has had no cycle in this process
	since time.Time // when the pod became unschedulable; zero if only its condition shows it
	// noRoom is when the pod began to lack resources. It is set only if the pod had failed for another reason before, or
	// is a member of a gang.
	noRoom time.Time
	// stopped is set if the pod last failed for a reason other than a lack of resources, such as an incomplete gang or
	// a missing PVC. tried is when it last failed for such a reason.
	stopped bool
	tried   time.Time
	// ignored is when the pod last had a nominated node, or lacked resources again after it had fit a node. Autoscalers
	// ignore pods with a nominated node.
	ignored   time.Time
	member    bool          // alike.InGang
	inherited time.Duration // for how long the deleted pod had waited whose waiting the pod continues
}

// New returns a Room without pods.
func New() *Room {
	return &Room{clocks: map[types.UID]clock{}, deleted: map[string][]published.Deleted{}}
}

// Failed records that a scheduling cycle of the pod failed at the time now. If Room already has the time at which the
// pod became unschedulable, this time stays. wantsRoom is set if the pod lacks resources. A failure for another reason
// resets the time at which the pod began to lack resources. If the pod has a node, it fit the node and was not bound,
// for example because a Permit plugin rejected it. The time at which the pod began to lack resources then stays, so
// that holdLimit ends even if the members of a gang fit in turn. The pod's next lack of resources restarts only the
// wait for a scale-up.
func (r *Room) Failed(pod *v1.Pod, wantsRoom bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	noRoom := r.sinceLocked(pod, now).NoRoom
	c := r.noteLocked(pod, now)
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
	r.clocks[pod.UID] = c
}

// Note records that the pod waits as of now, unless Room has it already.
func (r *Room) Note(pod *v1.Pod, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clocks[pod.UID] = r.noteLocked(pod, now)
}

func (r *Room) noteLocked(pod *v1.Pod, now time.Time) clock {
	c := r.clocks[pod.UID]
	if c.pod = pod; !c.since.IsZero() {
		return c
	}
	switch since := gate.UnschedulableSince(pod); {
	case since.IsZero():
		c.since = now
		r.inheritLocked(&c, now)
	case r.trusted:
		c.since = since
	}
	return c
}

// Trust makes Room use the times in the pods' conditions from now on.
func (r *Room) Trust(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trusted = true
	for uid, c := range r.clocks {
		if c.pod != nil {
			r.clocks[uid] = r.noteLocked(c.pod, now)
		}
	}
}

// Update processes a change of a pending pod. anew is set if the pod may fit other node groups now, and autoscalers have
// not tried it there.
func (r *Room) Update(before, pod *v1.Pod, anew bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clocks[pod.UID]
	if c.pod != nil {
		c.pod = pod
	} else if c.since.IsZero() {
		return
	}
	if anew || before.Status.NominatedNodeName != "" || pod.Status.NominatedNodeName != "" {
		c.ignored = now
	}
	r.clocks[pod.UID] = c
}

// Remove forgets the pod.
func (r *Room) Remove(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.clocks, uid)
}

// Since returns the times since which the pod has waited, as of now. With the zero time, a nomination that has not ended
// does not count.
func (r *Room) Since(pod *v1.Pod, now time.Time) published.Wait {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sinceLocked(pod, now)
}

func (r *Room) sinceLocked(pod *v1.Pod, now time.Time) published.Wait {
	c := r.clocks[pod.UID]
	s := published.Wait{Unschedulable: c.since, NoRoom: c.since, Ignored: c.ignored, Inherited: c.inherited}
	if c.since.IsZero() && r.trusted {
		s.Unschedulable, s.NoRoom = gate.UnschedulableSince(pod), gate.NoRoomSince(pod)
	}
	if c.stopped {
		s.NoRoom = time.Time{}
	} else if !c.noRoom.IsZero() {
		s.NoRoom = c.noRoom
	}
	if pod.Status.NominatedNodeName != "" {
		s.Ignored = nodegroups.Latest(s.Ignored, now)
	}
	return s
}

// UnknownToAPI returns, for the next leader, since when pods have waited if their conditions do not show it. The times
// are rounded up to seconds. There are three groups of pods. The first group are held pods whose condition shows an
// earlier time. These pods had scheduling gates, or once failed for a reason other than a lack of resources. The second
// group are pods that are not held and last failed for such a reason, for example a missing PVC. The PVC may appear
// while no scheduler leads. The third group are members of gangs, but only those that last lacked resources. ignored has
// when autoscalers last ignored held pods.
func (r *Room) UnknownToAPI(isHeld func(types.UID) bool) (known, ignored map[types.UID]time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ignored = map[types.UID]time.Time{}, map[types.UID]time.Time{}
	for uid, c := range r.clocks {
		if c.pod == nil { // the last leader's times of a pod that has had no cycle since
			known[uid], ignored[uid] = c.since, c.ignored
			continue
		}
		held, publish := isHeld(uid), c.stopped != c.member // for a member of a gang: if it last lacked resources
		if (held || c.member) && !c.stopped && !c.ignored.IsZero() {
			ignored[uid] = roundUp(c.ignored)
		}
		if held && !c.member {
			condition := gate.ScheduledCondition(c.pod)
			publish = condition != nil && c.latest().Sub(condition.LastTransitionTime.Time) > ClockTolerance
		}
		if publish {
			known[uid] = roundUp(c.latest())
		}
	}
	for _, times := range []map[types.UID]time.Time{known, ignored} {
		maps.DeleteFunc(times, func(_ types.UID, t time.Time) bool { return t.IsZero() })
	}
	return known, ignored
}

func roundUp(t time.Time) time.Time { return t.Add(time.Second - 1).Truncate(time.Second).UTC() }

// latest returns the pod's time for UnknownToAPI. If the pod last failed for a reason other than a lack of resources,
// latest returns the time of this failure. Otherwise, latest returns when the pod became unschedulable or, if that was
// later, began to lack resources.
func (c *clock) latest() time.Time {
	if c.stopped {
		return c.tried
	}
	return nodegroups.Latest(c.since, c.noRoom)
}

// Restore sets the time at which the pod became unschedulable, when autoscalers last ignored it, and what it has inherited,
// as UnknownToAPI and Heirs returned them. Zero values change nothing.
func (r *Room) Restore(uid types.UID, since, ignored time.Time, inherited time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clocks[uid]
	c.inherited = max(c.inherited, inherited)
	if !since.IsZero() {
		if c.since = since; c.tried.IsZero() { // the pod has only lacked resources
			c.noRoom = time.Time{}
		}
	}
	if c.ignored = nodegroups.Latest(c.ignored, ignored); c != (clock{}) {
		r.clocks[uid] = c
	}
}
