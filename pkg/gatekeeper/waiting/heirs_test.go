package waiting

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/published"
)

// TestHeirs: a new pod continues the waiting of one that was deleted while it waited, also under the next leader.
func TestHeirs(t *testing.T) {
	began := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	of := func(name, owner string) *v1.Pod {
		p := pod(name)
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", UID: types.UID(owner), Controller: ptr.To(true)}}
		}
		return p
	}
	wait := func(r *Room, p *v1.Pod, now time.Time) time.Duration {
		p.CreationTimestamp = metav1.NewTime(now)
		r.Failed(p, true, now)
		r.Note(p, now)
		w := r.Since(p, now)
		return now.Sub(w.NoRoom) + w.Inherited
	}
	end := func(r *Room, p *v1.Pod, now time.Time) {
		r.Deleted(p, time.Time{}, now)
		r.Remove(p.UID)
	}
	r := New()
	r.Trust(began)
	first := of("first", "a")
	wait(r, first, began)
	bare := of("bare", "")
	wait(r, bare, began)
	now := began.Add(3 * time.Minute)
	nominated := of("nominated", "c")
	wait(r, nominated, began)
	nominated.Status.NominatedNodeName = "vm"
	r.Update(nominated, nominated, false, now)
	end(r, nominated, now) // autoscalers ignored it
	end(r, first, now)
	end(r, bare, now)
	next := New()
	wait(next, of("older", "a"), began)
	now = now.Add(heirsFor)
	wait(next, of("the heir", "a"), now) // it is tried before the published state is read
	next.RestoreDeleted(r.Heirs(now).Deleted, now)
	next.Trust(now)
	for _, tc := range []struct {
		pod  *v1.Pod
		want time.Duration
	}{
		{of("another owner's", "b"), 0}, {of("the heir", "a"), 3 * time.Minute}, {of("the second", "a"), 0}, {of("a bare one", ""), 3 * time.Minute}, {of("after a nominated one", "c"), 0},
	} {
		if got := wait(next, tc.pod, now); got != tc.want {
			t.Errorf("%s continues %v, want %v", tc.pod.Name, got, tc.want)
		}
	}
	heir := of("the heir", "a")
	third := New()
	wait(third, heir, now)
	third.Restore(heir.UID, time.Time{}, time.Time{}, next.Heirs(now).Inherited[heir.UID])
	third.RestoreDeleted(map[string][]published.Deleted{alike.Heir(heir): {{At: now, Waited: time.Hour}}}, now) // for another heir
	if next.Since(of("older", "a"), now).Inherited != 0 || third.Since(heir, now).Inherited != 3*time.Minute {
		t.Error("an older pod inherits, or the next leader does not know what the heir has inherited")
	}
	end(next, heir, now.Add(3*time.Minute))
	if got := wait(next, of("its heir", "a"), now.Add(5*time.Minute)); got != 6*time.Minute {
		t.Errorf("the heir's heir continues %v", got)
	}
	wait(next, of("later", "a"), now)
	end(next, of("later", "a"), now.Add(time.Second))
	if got := wait(next, of("too late", "a"), now.Add(heirsFor+2*time.Second)); got != 0 || len(next.Heirs(now.Add(heirsFor+2*time.Second)).Deleted) != 0 {
		t.Errorf("one that comes too late continues %v", got)
	}
	for i := range maxDeleted + 10 {
		wait(next, of(fmt.Sprint(i), fmt.Sprint(i)), now)
		end(next, of(fmt.Sprint(i), fmt.Sprint(i)), now.Add(time.Second))
	}
	if n := len(next.Heirs(now).Deleted); n != maxDeleted {
		t.Errorf("%d deleted pods are remembered", n)
	}
}
