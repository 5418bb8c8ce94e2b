package held

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

// withCondition gives the pod the condition PodScheduled.
func withCondition(p *v1.Pod, status v1.ConditionStatus, reason string, since time.Time) *v1.Pod {
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}}
	return p
}

// TestHeldPodsAreRequeued: a held pod is requeued when the gate opens for it, and nothing is left of a pod that is gone.
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
	if !slices.Equal(opened, []string{"default/b"}) {
		t.Errorf("opened for %v, want only b", opened)
	}
	if !next.Equal(now.Add(time.Minute)) {
		t.Errorf("next look at %v, want %v", next, now.Add(time.Minute))
	}
	h.Add(b, "", &closed, nil, now.Add(time.Hour))
	if got := h.Since(b, now); !got.Unschedulable.Equal(now) {
		t.Errorf("unschedulable since %v, want since the first time: %v", got, now)
	}
	h.Remove(b.UID)
	h.Remove(a.UID)
	if len(h.pods)+len(h.added) != 0 || h.Since(a, now) != (published.Wait{}) {
		t.Errorf("something is left of the pods: %+v", h)
	}
}

// TestIgnored: a held pod that autoscalers ignore is admitted after a while: one without the condition, or with a
// nomination to a node that no longer exists. The time doubles with each admission.
func TestIgnored(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	told := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, now)
	gone, there := told.DeepCopy(), told.DeepCopy()
	gone.Status.NominatedNodeName, there.Status.NominatedNodeName = "gone", "there"
	exists := func(node string) bool { return node == "there" }
	for _, tc := range []struct {
		retry           time.Duration
		ignored, mended *v1.Pod
	}{{retryWithoutCondition, pod("p"), told}, {retryNominated, gone, there}} {
		h := New()
		h.Add(tc.ignored, "", closed, nil, now)
		for _, step := range []struct {
			after, next time.Duration
			want        int
		}{{tc.retry - 1, tc.retry, 0}, {tc.retry, 3 * tc.retry, 1}, {tc.retry + 1, 3 * tc.retry, 0}, {3 * tc.retry, 7 * tc.retry, 1}, {time.Hour, time.Hour + 8*tc.retry, 1}, {2 * time.Hour, 2*time.Hour + min(16*tc.retry, retryHeld), 1}} {
			var next time.Time
			if names := h.sends(now.Add(step.after), func() { _, next = h.Overdue(exists, now.Add(step.after)) }); len(names) != step.want || !next.Equal(now.Add(step.next)) {
				t.Errorf("after %v: %v, next look at %v; want %d, %v", step.after, names, next, step.want, now.Add(step.next))
			}
		}
		h.Update(tc.ignored, tc.mended, now)
		if ignored, _ := h.Overdue(exists, now.Add(3*time.Hour)); ignored != 0 {
			t.Errorf("%d pods are ignored after the API server has it right", ignored)
		}
	}
}

// TestOverdue: a held pod is tried again retryHeld after its last cycle, after all pods that wait for their batch in
// another way. It then waits for retryHeld again.
func TestOverdue(t *testing.T) {
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for i, name := range []string{"old", "urgent", "young"} {
		p := withCondition(pod(name), v1.ConditionFalse, v1.PodReasonUnschedulable, now)
		p.Spec.Priority = new(int32)
		*p.Spec.Priority = int32(10 - i)
		h.Add(p, "", closed, nil, now.Add(time.Duration(i)*time.Minute))
	}
	untried := func(after time.Duration, want string, next time.Duration) {
		t.Helper()
		var due time.Time
		names := h.newly(func() { _, due = h.Overdue(nil, now.Add(after)) })
		if got := strings.Join(names, " "); got != want || !due.Equal(now.Add(next)) {
			t.Errorf("after %v: %q, the next at %v; want %q at %v", after, got, due, want, now.Add(next))
		}
	}
	untried(retryHeld-1, "", retryHeld)
	untried(retryHeld, "default/old", retryHeld+time.Minute)
	untried(retryHeld+time.Minute, "default/urgent", retryHeld+2*time.Minute)
	h.admit(pod("urgent"), NodeHasRoom, now)
	if queue, _ := h.Queue(now); queue[0].Pod.Name != "old" {
		t.Errorf("the first in the scheduler's order is %s", queue[0].Pod.Name)
	}
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

// TestForRollout: only pods of the same ReplicaSet count, and the first wait is remembered.
func TestForRollout(t *testing.T) {
	h, now, closed := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), gate.Decision{Burst: []gate.Verdict{{}}}
	for name, wait := range map[string]*gate.Wait{"a": {ReplicaSet: "new"}, "b": {ReplicaSet: "new"}, "old": {ReplicaSet: "old"}, "victims": {}, "plain": nil} {
		h.Add(pod(name), "", &closed, wait, now)
	}
	h.Add(pod("a"), "", &closed, &gate.Wait{ReplicaSet: "new"}, now.Add(time.Minute))
	h.Release("b")
	if since, others := h.ForRollout("p", "new"); !since.IsZero() || others != 1 {
		t.Errorf("since %v, and %d others wait", since, others)
	}
	if since, others := h.ForRollout("a", "new"); !since.Equal(now) || others != 0 {
		t.Errorf("pod a: since %v, and %d others wait", since, others)
	}
}

// lookFor calls Reconsider, and returns the pods that it admits, which are sent at once, and the time of the next sync.
func (h *Pods) lookFor(onlyNew bool, now time.Time, decide func(*Candidate) gate.Decision) (names []string, next time.Time) {
	names = h.sends(now, func() { next = h.Reconsider(onlyNew, now, noNodes, decide).Next })
	return names, next
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
		{"it no longer waits for others", func(h *Pods, p *v1.Pod) { h.Release(p.UID) }, 0, true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, p := New(), pod("p")
			h.Add(p, "", &closed, &gate.Wait{}, now)
			var l Result
			opened := h.sends(now, func() {
				l = h.Reconsider(false, now, noNodes, func(*Candidate) gate.Decision {
					tc.meanwhile(h, p)
					return open
				})
			})
			if len(opened) != tc.opened || l.Again != tc.again {
				t.Errorf("opened for %v, again: %v", opened, l.Again)
			}
			if opened, _ := h.lookFor(true, now, func(*Candidate) gate.Decision { return open }); len(opened) != tc.then {
				t.Errorf("then opened for %v", opened)
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
		names, _ := h.lookFor(onlyNew, now, func(*Candidate) gate.Decision { return *held(reason) })
		return names
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
		{"the reservation failed", func(h *Pods, p *v1.Pod) { h.Reserved(p.UID); h.fails(p, true, now) }, true},
		{"it last failed for another reason", func(h *Pods, p *v1.Pod) { h.fails(p, false, now) }, false},
		{"a gate is open", func(h *Pods, _ *v1.Pod) { h.decide(opens, now) }, false},
		{"it was just tried", func(h *Pods, p *v1.Pod) { h.fails(p, true, now.Add(1)) }, false},
	} {
		h, p := New(), withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, now)
		h.Add(p, "", closed, nil, now)
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
