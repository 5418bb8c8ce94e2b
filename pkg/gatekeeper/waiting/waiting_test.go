package waiting

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

// withCondition gives the pod the condition PodScheduled.
func withCondition(p *v1.Pod, status v1.ConditionStatus, reason string, since time.Time) *v1.Pod {
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}}
	return p
}

// assumed returns the pod on a node.
func assumed(p *v1.Pod) *v1.Pod {
	p = p.DeepCopy()
	p.Spec.NodeName = "n"
	return p
}

func held(types.UID) bool    { return true }
func notHeld(types.UID) bool { return false }

// TestFirstFailure: a pod that had scheduling gates counts as unschedulable from its first failure, not from its
// creation. Until it fails, nothing is recorded, not even a nomination.
func TestFirstFailure(t *testing.T) {
	r := New()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	p := pod("p")
	withCondition(p, v1.ConditionFalse, v1.PodReasonSchedulingGated, now.Add(-time.Hour))
	nominated := p.DeepCopy()
	nominated.Status.NominatedNodeName = "n"
	if r.Update(p, nominated, false, now); len(r.clocks) != 0 {
		t.Errorf("clocks: %v", r.clocks)
	}
	r.Failed(p, true, now)
	p.Status.Conditions[0].Reason = v1.PodReasonUnschedulable // the condition's status and time remain
	if got := r.Since(p, now); !got.Unschedulable.Equal(now) || !got.NoRoom.Equal(now) {
		t.Errorf("unschedulable since %+v, want %v", got, now)
	}
}

// TestUnknownToAPI: the times of pods that had scheduling gates are published, and no others.
func TestUnknownToAPI(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	condition := func(name string, at time.Time, reason string) *v1.Pod {
		return withCondition(pod(name), v1.ConditionFalse, reason, at)
	}
	r := New()
	add := func(p *v1.Pod, now time.Time) {
		r.Failed(p, true, now)
		r.Note(p, now)
	}
	add(pod("new"), now)
	add(condition("plain", now.Add(-time.Second), v1.PodReasonUnschedulable), now)
	add(condition("gated", now.Add(-time.Hour), v1.PodReasonSchedulingGated), now)
	add(condition("gated-later", now.Add(-time.Hour), v1.PodReasonSchedulingGated), now.Add(time.Minute))
	r.Update(pod("gated"), condition("gated", now.Add(-time.Hour), v1.PodReasonUnschedulable), false, now) // the condition keeps its time
	got, _ := r.UnknownToAPI(held)
	next := New() // the next leader hands on what it has not used yet
	next.Restore("gated", got["gated"], now, 0)
	next.Restore("gated-later", got["gated-later"], time.Time{}, 0)
	if known, ignored := next.UnknownToAPI(notHeld); len(known) != 2 || !known["gated"].Equal(got["gated"]) || len(ignored) != 1 || !ignored["gated"].Equal(now) {
		t.Errorf("unknownToAPI() of the next leader = %v, %v", known, ignored)
	}
	if len(got) != 2 || !got["gated"].Equal(now) || !got["gated-later"].Equal(now.Add(time.Minute)) {
		t.Errorf("unknownToAPI() = %v, want the two pods that had gates", got)
	}
}

// TestClocks: the times from which the waits of a pod are counted, after each kind of failure and nomination.
func TestClocks(t *testing.T) {
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	const never = -1
	type event struct {
		minute                int
		insufficientResources bool   // the pod fails because it lacks resources
		gang                  bool   // the pod fails because its gang is incomplete
		fits                  bool   // the pod fits a node, and a Permit plugin rejects it
		nominated             string // the pod's new nominatedNodeName; "no" means none
	}
	for _, tc := range []struct {
		name                   string
		told                   int // the time of the pod's condition Unschedulable
		events                 []event
		unschedulable, noRoom  int
		ignored, publishedAsOf int
	}{
		{"it fails for want of room", never, []event{{minute: 0, insufficientResources: true}, {minute: 5, insufficientResources: true}}, 0, 0, never, never},
		{"it failed before this scheduler led", -60, []event{{minute: 0, insufficientResources: true}}, -60, -60, never, never},
		{"its gang is not there", never, []event{{minute: 0, gang: true}, {minute: 5, gang: true}}, 0, never, never, 5},
		{"its gang completes", -60, []event{{minute: 0, gang: true}, {minute: 6, insufficientResources: true}, {minute: 7, insufficientResources: true}}, -60, 6, never, 6},
		{"its gang is not there again", -60, []event{{minute: 0, gang: true}, {minute: 6, insufficientResources: true}, {minute: 7, gang: true}, {minute: 8, gang: true}}, -60, never, never, 8},
		{"its gang completes once more", -60, []event{{minute: 0, gang: true}, {minute: 6, insufficientResources: true}, {minute: 7, gang: true}, {minute: 9, insufficientResources: true}}, -60, 9, never, 9},
		{"it has no room, and then its claim is gone for a while", -60, []event{{minute: 0, insufficientResources: true}, {minute: 1, gang: true}, {minute: 2, insufficientResources: true}}, -60, 2, never, 2},
		{"it fits, and does not get the permission", never, []event{{minute: 0, fits: true}, {minute: 5, fits: true}}, 0, never, never, 5},
		{"it has no room, and then fits", -60, []event{{minute: 0, insufficientResources: true}, {minute: 5, fits: true}}, -60, never, never, 5},
		{"it fits, and then has no room", -60, []event{{minute: 0, fits: true}, {minute: 5, insufficientResources: true}}, -60, -60, 5, 5},
		{"it has no room, fits, and has no room again", -60, []event{{minute: 0, insufficientResources: true}, {minute: 2, fits: true}, {minute: 3, fits: true}, {minute: 6, insufficientResources: true}, {minute: 7, insufficientResources: true}}, -60, -60, 6, 6},
		{"it is nominated", -60, []event{{minute: 0, insufficientResources: true}, {minute: 1, nominated: "n"}}, -60, -60, 10, 1},
		{"it is nominated no more", -60, []event{{minute: 0, insufficientResources: true}, {minute: 1, nominated: "n"}, {minute: 4, nominated: "no"}}, -60, -60, 4, 4},
		{"it was nominated, and fails again", -60, []event{{minute: 0, insufficientResources: true}, {minute: 1, nominated: "n"}, {minute: 4, nominated: "no"}, {minute: 5, insufficientResources: true}}, -60, -60, 4, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New()
			r.Trust(start)
			p := pod("p")
			if tc.told != never {
				withCondition(p, v1.ConditionFalse, v1.PodReasonUnschedulable, at(tc.told))
			}
			for _, e := range tc.events {
				now := at(e.minute)
				if e.fits {
					r.Failed(assumed(p), false, now)
					continue
				}
				if e.nominated == "" {
					r.Failed(p, e.insufficientResources, now)
					continue
				}
				before := p
				p = before.DeepCopy()
				p.Status.NominatedNodeName = e.nominated
				if e.nominated == "no" {
					p.Status.NominatedNodeName = ""
				}
				r.Update(before, p, false, now)
			}
			check := func(what string, got time.Time, want int) {
				if want == never && !got.IsZero() || want != never && !got.Equal(at(want)) {
					t.Errorf("%s %v, want minute %d", what, got, want)
				}
			}
			got := r.Since(p, at(10))
			check("unschedulable since", got.Unschedulable, tc.unschedulable)
			check("without room since", got.NoRoom, tc.noRoom)
			check("ignored until", got.Ignored, tc.ignored)
			if got.NoRoom.IsZero() {
				known, _ := r.UnknownToAPI(notHeld)
				check("published since, without being held", known[p.UID], tc.publishedAsOf)
				withCondition(p, v1.ConditionFalse, v1.PodReasonUnschedulable, start.Add(-time.Hour)) // the API server has the condition by now
			}
			r.Note(p, at(10))
			known, ignored := r.UnknownToAPI(held)
			if known[p.UID].IsZero() {
				check("published as ignored", ignored[p.UID], tc.publishedAsOf)
			} else {
				check("published since", known[p.UID], tc.publishedAsOf)
			}
			successor := New()
			successor.Restore(p.UID, known[p.UID], ignored[p.UID], 0)
			successor.Trust(at(10))
			if tc.told != never && tc.noRoom != never { // a fail-over does not start holdLimit again
				check("for a successor, without room since", successor.Since(p, at(10)).NoRoom, tc.noRoom)
				check("for a successor, ignored until", successor.Since(p, at(10)).Ignored, tc.ignored)
			}
			r.Remove(p.UID)
			if len(r.clocks) != 0 {
				t.Error("something is left of its clock")
			}
		})
	}
}

// TestGangMember: the condition of a member of a gang does not show since when the member has lacked resources. A new
// leader starts the time when it tries the member, or takes it from the last leader.
func TestGangMember(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	created, last := now.Add(-time.Hour), now.Add(-time.Minute)
	for _, tc := range []struct {
		name   string
		member bool
		do     func(r *Room, p *v1.Pod)
		want   time.Time // the time since which it has lacked room
	}{
		{"not tried", true, func(r *Room, _ *v1.Pod) { r.Trust(now) }, time.Time{}},
		{"tried", true, func(r *Room, p *v1.Pod) { r.Trust(now); r.Failed(p, true, now) }, now},
		{"tried twice", true, func(r *Room, p *v1.Pod) { r.Trust(now); r.Failed(p, true, last); r.Failed(p, true, now) }, last},
		{"fits", true, func(r *Room, p *v1.Pod) { r.Trust(now); r.Failed(assumed(p), false, now) }, time.Time{}},
		{"published", true, func(r *Room, p *v1.Pod) { r.Restore(p.UID, last, time.Time{}, 0); r.Trust(now); r.Failed(p, true, now) }, last},
		{"published, and tried before the start", true, func(r *Room, p *v1.Pod) { r.Failed(p, true, now); r.Restore(p.UID, last, time.Time{}, 0); r.Trust(now) }, last},
		{"in no gang", false, func(r *Room, _ *v1.Pod) { r.Trust(now) }, created},
		{"in no gang, and tried", false, func(r *Room, p *v1.Pod) { r.Trust(now); r.Failed(p, true, now) }, created},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, p := New(), withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, created)
			if tc.member {
				p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "g"}
			}
			tc.do(r, p)
			if got := r.Since(p, now); !got.NoRoom.Equal(tc.want) {
				t.Errorf("without room since %v, want %v", got.NoRoom, tc.want)
			}
			if published, _ := r.UnknownToAPI(notHeld); tc.want.IsZero() && len(published) > 0 {
				t.Errorf("published: %v, want nothing for a member that lacks no room", published)
			}
			r.Failed(p, true, now)
			r.Note(p, now)
			if got, _ := r.UnknownToAPI(held); tc.member && !got[p.UID].Equal(r.Since(p, now).NoRoom) {
				t.Errorf("published %v, want %v", got[p.UID], r.Since(p, now).NoRoom)
			}
		})
	}
}
