package held

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
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

// TestFirstFailure: a pod that had scheduling gates counts as unschedulable from its first failure, not from its
// creation.
func TestFirstFailure(t *testing.T) {
	h := New()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	p := pod("p")
	withCondition(p, v1.ConditionFalse, v1.PodReasonSchedulingGated, now.Add(-time.Hour))
	h.Failed(p, true, now)
	p.Status.Conditions[0].Reason = v1.PodReasonUnschedulable // the condition's status and time remain
	if got := h.Since(p, now); !got.Unschedulable.Equal(now) || !got.NoRoom.Equal(now) {
		t.Errorf("unschedulable since %+v, want %v", got, now)
	}
}

// TestHeldPodsAreRequeued: a held pod is requeued when the gate opens for it, once each time it was held.
func TestHeldPodsAreRequeued(t *testing.T) {
	h := New()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed := gate.Decision{Burst: []gate.Verdict{{Open: false}}}
	a, b := pod("a"), pod("b")
	b.Annotations = map[string]string{"open": "yes"}
	h.Add(a, "", &closed, nil, now)
	h.Add(b, "", &closed, nil, now)
	decide := func(c *Candidate) gate.Decision {
		d := gate.Decision{Burst: []gate.Verdict{{Open: c.Pod.Annotations["open"] == "yes", Until: c.Since.Unschedulable.Add(time.Minute)}}}
		return d
	}
	opened, next := h.lookFor(false, now, decide)
	if len(opened) != 1 || opened["default/b"] == nil {
		t.Errorf("opened for %v, want only b", opened)
	}
	if !next.Equal(now.Add(time.Minute)) {
		t.Errorf("next look at %v, want %v", next, now.Add(time.Minute))
	}
	if opened, _ = h.lookFor(false, now, decide); len(opened) != 0 {
		t.Errorf("requeued again without a change: %v", opened)
	}
	// The pod was held again with a closed gate, so it is requeued again.
	h.Add(b, "", &closed, nil, now.Add(time.Hour))
	if opened, _ = h.lookFor(true, now, decide); len(opened) != 1 {
		t.Errorf("opened for %v, want b", opened)
	}
	if got := h.Since(b, now); !got.Unschedulable.Equal(now) {
		t.Errorf("unschedulable since %v, want since the first time: %v", got, now)
	}
	h.Remove(b.UID)
	h.Remove(a.UID)
	if len(h.pods)+len(h.firstFailed)+len(h.clocks)+len(h.added) != 0 {
		t.Errorf("something is left of the pods: %+v", h)
	}
}

// TestWithoutCondition: a held pod without the condition is requeued after retryWithoutCondition. The time doubles with
// each try.
func TestWithoutCondition(t *testing.T) {
	h := New()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed := gate.Decision{Burst: []gate.Verdict{{Open: false}}}
	told := withCondition(pod("told"), v1.ConditionFalse, v1.PodReasonUnschedulable, now)
	h.Add(told, "", &closed, nil, now)
	h.Add(pod("withoutCondition"), "", &closed, nil, now)
	exists := func(string) bool { return true }
	for _, tc := range []struct {
		after, next time.Duration
		want        int
	}{
		{0, retryWithoutCondition, 0},
		{retryWithoutCondition - 1, retryWithoutCondition, 0},
		{retryWithoutCondition, 3 * retryWithoutCondition, 1},
		{retryWithoutCondition + 1, 3 * retryWithoutCondition, 0},
		{3 * retryWithoutCondition, 7 * retryWithoutCondition, 1},
		{3*retryWithoutCondition + time.Hour, 3*retryWithoutCondition + time.Hour + 8*retryWithoutCondition, 1},
	} {
		pods, next := h.Ignored(exists, now.Add(tc.after))
		if len(pods) != tc.want || tc.want == 1 && pods["default/withoutCondition"] == nil || !next.Equal(now.Add(tc.next)) {
			t.Errorf("after %v: %d pods, next look at %v; want %d, %v", tc.after, len(pods), next, tc.want, now.Add(tc.next))
		}
	}
	known := told.DeepCopy()
	known.UID, known.Name = "withoutCondition", "withoutCondition"
	h.Update(told, known, now)
	if pods, next := h.Ignored(exists, now.Add(time.Hour)); len(pods) != 0 || !next.IsZero() {
		t.Errorf("%d pods, next look at %v, when the API says it of all", len(pods), next)
	}
}

// TestUntried: a held pod is tried again retryHeld after its last cycle, after all pods that wait for their batch in
// another way. It then waits for retryHeld again.
func TestUntried(t *testing.T) {
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for i, name := range []string{"old", "urgent", "young"} {
		p := pod(name)
		p.Spec.Priority = new(int32)
		*p.Spec.Priority = int32(10 - i)
		h.Add(p, "", closed, nil, now.Add(time.Duration(i)*time.Minute))
	}
	untried := func(after time.Duration, want string, next time.Duration) {
		t.Helper()
		pods, due := h.Untried(now.Add(after))
		for _, p := range pods {
			h.Enqueue(p, Last)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(pods)), " "); got != want || !due.Equal(now.Add(next)) {
			t.Errorf("after %v: %q, the next at %v; want %q at %v", after, got, due, want, now.Add(next))
		}
	}
	untried(retryHeld-1, "", retryHeld)
	untried(retryHeld, "default/old", retryHeld+time.Minute)
	untried(retryHeld+time.Minute, "default/old default/urgent", retryHeld+2*time.Minute)
	h.Enqueue(pod("urgent"), Always)
	h.batches.limit = 1
	for _, want := range []string{"urgent", "old", ""} {
		if got := h.batch(now); got != want {
			t.Errorf("the batch has %q, want %q", got, want)
		}
		h.Ended("urgent", now)
		h.Ended("old", now)
		h.batches.limit, h.batches.pods = 1, 0
	}
	h.Add(h.pods["old"].pod, "", closed, nil, now.Add(retryHeld+90*time.Second))
	h.Remove("urgent")
	untried(retryHeld+2*time.Minute, "default/young", 2*retryHeld+90*time.Second)
}

// TestNominatedToNoNode: a held pod is requeued at once when the node to which it is nominated no longer exists, and
// again after retryNominated, twice that, and so on.
func TestNominatedToNoNode(t *testing.T) {
	h, gone := New(), false
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, now)
	p.Status.NominatedNodeName = "n"
	h.Add(p, "", &gate.Decision{Burst: []gate.Verdict{{}}}, nil, now)
	for _, tc := range []struct {
		after time.Duration
		gone  bool
		want  int
		next  time.Duration // 0: never
	}{
		{time.Minute, false, 0, 0},
		{time.Minute, true, 1, time.Minute + 2*retryNominated},
		{time.Minute + retryNominated, true, 0, time.Minute + 2*retryNominated},
		{time.Minute + 2*retryNominated, true, 1, time.Minute + 6*retryNominated},
		{2 * time.Minute, false, 0, 0}, // the node was created anew
	} {
		gone = tc.gone
		pods, next := h.Ignored(func(node string) bool { return node != "n" || !gone }, now.Add(tc.after))
		if len(pods) != tc.want || tc.next == 0 != next.IsZero() || tc.next != 0 && !next.Equal(now.Add(tc.next)) {
			t.Errorf("after %v: %d pods, next look at %v; want %d, %v", tc.after, len(pods), next, tc.want, now.Add(tc.next))
		}
	}
}

func TestUnschedulableSince(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		reason string
		status v1.ConditionStatus
		want   bool
	}{
		{"unschedulable", v1.PodReasonUnschedulable, v1.ConditionFalse, true},
		{"waits for scheduling gates", v1.PodReasonSchedulingGated, v1.ConditionFalse, false},
		{"scheduler error", v1.PodReasonSchedulerError, v1.ConditionFalse, false},
		{"scheduled", "", v1.ConditionTrue, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pod("p")
			withCondition(p, tc.status, tc.reason, at)
			if got := !gate.UnschedulableSince(p).IsZero(); got != tc.want {
				t.Errorf("known to be unschedulable: %v, want %v", got, tc.want)
			}
		})
	}
}

// TestUnknownToAPI: the times of pods that had scheduling gates are published, and no others.
func TestUnknownToAPI(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	condition := func(name string, at time.Time, reason string) *v1.Pod {
		return withCondition(pod(name), v1.ConditionFalse, reason, at)
	}
	h := New()
	closed := &gate.Decision{Burst: []gate.Verdict{{}}}
	add := func(p *v1.Pod, now time.Time) {
		h.Failed(p, true, now)
		h.Add(p, "", closed, nil, now)
	}
	add(pod("new"), now)
	add(condition("plain", now.Add(-time.Second), v1.PodReasonUnschedulable), now)
	add(condition("gated", now.Add(-time.Hour), v1.PodReasonSchedulingGated), now)
	add(condition("gated-later", now.Add(-time.Hour), v1.PodReasonSchedulingGated), now.Add(time.Minute))
	h.Update(pod("gated"), condition("gated", now.Add(-time.Hour), v1.PodReasonUnschedulable), now) // the condition keeps its time
	got, _ := h.UnknownToAPI()
	if len(got) != 2 || !got["gated"].Equal(now) || !got["gated-later"].Equal(now.Add(time.Minute)) {
		t.Errorf("unknownToAPI() = %v, want the two pods that had gates", got)
	}
}

// TestStaleSnapshot: a pod that was held because of a stale snapshot is requeued once, after retryStale.
func TestStaleSnapshot(t *testing.T) {
	held := New()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	held.Add(pod("p"), "", &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonSnapshotStale}}}, nil, now)
	open := func(*Candidate) gate.Decision {
		return gate.Decision{Burst: []gate.Verdict{{Open: true}}}
	}
	if opened, next := held.lookFor(true, now, open); len(opened) != 0 || !next.Equal(now.Add(retryStale)) {
		t.Errorf("requeued at once: %v, next look at %v", opened, next)
	}
	if opened, _ := held.lookFor(false, now.Add(retryStale), open); len(opened) != 1 {
		t.Error("not requeued after retryStale")
	}
	if opened, _ := held.lookFor(false, now.Add(time.Hour), open); len(opened) != 0 {
		t.Error("requeued again without being held again")
	}
}

// TestProgressedPods: when a rollout changes, the pods that wait for it are retried soon. The more pods wait, the later
// is the retry, but it is never later than without the change.
func TestProgressedPods(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name        string
		pods        int
		until, want time.Duration // from now
		moved       bool
	}{
		{"one", 1, time.Minute, rolloutRetryInterval, true},
		{"as many as have a second together", 25, time.Minute, rolloutRetryInterval, true},
		{"many", 100, time.Minute, 100 * TryEach, true},
		{"one that is due sooner", 1, rolloutRetryInterval / 2, rolloutRetryInterval / 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New()
			closed := gate.Decision{Burst: []gate.Verdict{{}}}
			for i := range tc.pods {
				h.Add(pod(fmt.Sprint("p", i)), "", &closed, &Reservation{Wait: gate.Wait{Until: now.Add(tc.until)}, Deployment: "web"}, now)
			}
			h.Add(pod("other"), "", &closed, &Reservation{Wait: gate.Wait{Until: now.Add(tc.until)}, Deployment: "other"}, now)
			if moved := h.RolloutChanged("web"); moved != tc.moved {
				t.Errorf("progressed() = %v, want %v", moved, tc.moved)
			}
			for uid, entry := range h.pods {
				want := tc.want
				if uid == "other" {
					want = tc.until
				}
				if got := entry.reservation.Until; !got.Equal(now.Add(want)) {
					t.Errorf("pod %s waits until %v, want %v", uid, got, now.Add(want))
				}
			}
		})
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
			h := New()
			h.Trust(start)
			p := pod("p")
			if tc.told != never {
				withCondition(p, v1.ConditionFalse, v1.PodReasonUnschedulable, at(tc.told))
			}
			for _, e := range tc.events {
				now := at(e.minute)
				if e.fits {
					h.Failed(assumed(p), false, now)
					continue
				}
				if e.nominated == "" {
					h.Failed(p, e.insufficientResources, now)
					continue
				}
				before := p
				p = before.DeepCopy()
				p.Status.NominatedNodeName = e.nominated
				if e.nominated == "no" {
					p.Status.NominatedNodeName = ""
				}
				h.Update(before, p, now)
			}
			check := func(what string, got time.Time, want int) {
				if want == never && !got.IsZero() || want != never && !got.Equal(at(want)) {
					t.Errorf("%s %v, want minute %d", what, got, want)
				}
			}
			got := h.Since(p, at(10))
			check("unschedulable since", got.Unschedulable, tc.unschedulable)
			check("without room since", got.NoRoom, tc.noRoom)
			check("ignored until", got.Ignored, tc.ignored)
			if got.NoRoom.IsZero() {
				known, _ := h.UnknownToAPI()
				check("published since, without being held", known[p.UID], tc.publishedAsOf)
				withCondition(p, v1.ConditionFalse, v1.PodReasonUnschedulable, start.Add(-time.Hour)) // the API server has the condition by now
			}
			h.Add(p, "", &gate.Decision{Burst: []gate.Verdict{{}}}, nil, at(10))
			known, ignored := h.UnknownToAPI()
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
			h.Remove(p.UID)
			if len(h.clocks) != 0 {
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
		do     func(h *Pods, p *v1.Pod)
		want   time.Time // the time since which it has lacked room
	}{
		{"not tried", true, func(h *Pods, _ *v1.Pod) { h.Trust(now) }, time.Time{}},
		{"tried", true, func(h *Pods, p *v1.Pod) { h.Trust(now); h.Failed(p, true, now) }, now},
		{"tried twice", true, func(h *Pods, p *v1.Pod) { h.Trust(now); h.Failed(p, true, last); h.Failed(p, true, now) }, last},
		{"fits", true, func(h *Pods, p *v1.Pod) { h.Trust(now); h.Failed(assumed(p), false, now) }, time.Time{}},
		{"published", true, func(h *Pods, p *v1.Pod) { h.Restore(p.UID, last, time.Time{}, 0); h.Trust(now); h.Failed(p, true, now) }, last},
		{"published, and tried before the start", true, func(h *Pods, p *v1.Pod) { h.Failed(p, true, now); h.Restore(p.UID, last, time.Time{}, 0); h.Trust(now) }, last},
		{"in no gang", false, func(h *Pods, _ *v1.Pod) { h.Trust(now) }, created},
		{"in no gang, and tried", false, func(h *Pods, p *v1.Pod) { h.Trust(now); h.Failed(p, true, now) }, created},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, p := New(), withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, created)
			if tc.member {
				p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "g"}
			}
			tc.do(h, p)
			if got := h.Since(p, now); !got.NoRoom.Equal(tc.want) {
				t.Errorf("without room since %v, want %v", got.NoRoom, tc.want)
			}
			if published, _ := h.UnknownToAPI(); tc.want.IsZero() && len(published) > 0 {
				t.Errorf("published: %v, want nothing for a member that lacks no room", published)
			}
			h.Failed(p, true, now)
			h.Add(p, "", &gate.Decision{Burst: []gate.Verdict{{}}}, nil, now)
			if got, _ := h.UnknownToAPI(); tc.member && !got[p.UID].Equal(h.Since(p, now).NoRoom) {
				t.Errorf("published %v, want %v", got[p.UID], h.Since(p, now).NoRoom)
			}
		})
	}
}

// TestIgnoredBeforeItFailed: the nomination of a pod that never failed is not recorded.
func TestIgnoredBeforeItFailed(t *testing.T) {
	h := New()
	p := pod("p")
	p.Status.NominatedNodeName = "n"
	h.Update(pod("p"), p, time.Now())
	if len(h.clocks) != 0 {
		t.Errorf("clocks: %v", h.clocks)
	}
}

// lookFor calls Reconsider, and returns the pods to requeue and the time of the next sync.
func (h *Pods) lookFor(onlyNew bool, now time.Time, decide func(*Candidate) gate.Decision) (map[string]*v1.Pod, time.Time) {
	l := h.Reconsider(onlyNew, now, noNodes, decide)
	return l.Opened, l.Next
}

// TestSyncBesideCycles: if a pod's entry changes during a sync, the decision is dropped, and the next sync decides
// again. A pod that is bound during the sync is not requeued.
func TestSyncBesideCycles(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed, open := gate.Decision{Burst: []gate.Verdict{{}}}, gate.Decision{Burst: []gate.Verdict{{Open: true}}}
	for _, tc := range []struct {
		name      string
		meanwhile func(h *Pods, p *v1.Pod)
		opened    int
		again     bool
		then      int // pods that the next Reconsider with onlyNew opens the gate for
	}{
		{"nothing happens", func(*Pods, *v1.Pod) {}, 1, false, 0},
		{"it is bound", func(h *Pods, p *v1.Pod) { h.Remove(p.UID) }, 0, false, 0},
		{"it changes", func(h *Pods, p *v1.Pod) { h.Update(p, p.DeepCopy(), now) }, 0, true, 1},
		{"it is held again", func(h *Pods, p *v1.Pod) { h.Add(p, "", &closed, nil, now) }, 0, true, 1},
		{"it is reserved a place no more", func(h *Pods, p *v1.Pod) { h.Release(p.UID) }, 0, true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, p := New(), pod("p")
			h.Add(p, "", &closed, &Reservation{Node: "n"}, now)
			l := h.Reconsider(false, now, noNodes, func(*Candidate) gate.Decision {
				tc.meanwhile(h, p)
				return open
			})
			if len(l.Opened) != tc.opened || l.Again != tc.again {
				t.Errorf("opened for %v, again: %v", l.Opened, l.Again)
			}
			if l := h.Reconsider(true, now, noNodes, func(*Candidate) gate.Decision { return open }); len(l.Opened) != tc.then {
				t.Errorf("then opened for %v", l.Opened)
			}
		})
	}
}

// TestStartIsReported: a pod that was held because the scheduler was starting is requeued once the scheduler has
// started, no matter when the pod was held.
func TestStartIsReported(t *testing.T) {
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	held := func(reason nodegroups.Reason) *gate.Decision {
		return &gate.Decision{Regular: []gate.Verdict{{Reason: reason}}, Burst: []gate.Verdict{{}, {Reason: gate.ReasonCanGrow}}}
	}
	grows := nodegroups.Reason{Code: "BelowMaxSize"}
	h.Add(pod("early"), "", held(ReasonStarting), nil, now)
	h.Add(pod("late"), "", held(grows), nil, now)
	look := func(onlyNew bool, reason nodegroups.Reason) []string {
		return slices.Sorted(maps.Keys(h.Reconsider(onlyNew, now, noNodes, func(*Candidate) gate.Decision { return *held(reason) }).Opened))
	}
	for i, tc := range []struct {
		reason nodegroups.Reason
		want   []string
	}{{ReasonStarting, nil}, {grows, []string{"default/early"}}, {grows, nil}} {
		if got := look(false, tc.reason); !slices.Equal(got, tc.want) {
			t.Errorf("look %d: %v is tried again, want %v", i, got, tc.want)
		}
	}
	h.Add(pod("in-flight"), "", held(ReasonStarting), nil, now) // its cycle began before the sync, and ended after it
	if got := look(true, grows); !slices.Equal(got, []string{"default/in-flight"}) {
		t.Errorf("%v is tried again", got)
	}
}

// TestQueue: which held pods wait for a node.
func TestQueue(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		change func(h *Pods, p *v1.Pod)
		want   bool
	}{
		{"it waits", func(*Pods, *v1.Pod) {}, true},
		{"its condition is not written yet", func(_ *Pods, p *v1.Pod) { p.Status.Conditions = nil }, false},
		{"it is nominated", func(_ *Pods, p *v1.Pod) { p.Status.NominatedNodeName = "node" }, false},
		{"a node is reserved for it", func(h *Pods, p *v1.Pod) { h.Reserved(p.UID) }, false},
		{"the reservation failed", func(h *Pods, p *v1.Pod) { h.Reserved(p.UID); h.Failed(p, true, now) }, true},
		{"it last failed for another reason", func(h *Pods, p *v1.Pod) { h.Failed(p, false, now) }, false},
		{"a gate is open", func(h *Pods, _ *v1.Pod) { h.decide(opens, now) }, false},
		{"it was just tried", func(h *Pods, p *v1.Pod) { h.Failed(p, true, now.Add(1)) }, false},
	} {
		h, p := New(), withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, now)
		h.Add(p, "", closed, nil, now)
		if queue, _ := h.Queue(now.Add(time.Hour)); len(queue) != 0 {
			t.Errorf("%s: before Trust, the queue has %v", tc.name, queue)
		}
		h.Trust(now)
		tc.change(h, p)
		queue, again := h.Queue(now.Add(waitsAfter))
		if len(queue) != 1 || queue[0].Waits != tc.want || again.IsZero() != (tc.name != "it was just tried") {
			t.Errorf("%s: %+v, again %v; waits should be %v", tc.name, queue, again, tc.want)
		}
	}
}

// noNodes is for pods of which it is not known what node they need.
func noNodes() map[string]*Space { return nil }
