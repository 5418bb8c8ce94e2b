package model

import (
	"flag"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/must"
)

var publications = flag.Int("published", 5000, "held pods for which TestGate compares the gate's decision with that of who reads the published view")

// reader decides with nothing but the published View.
type reader struct {
	args  configv1.PoolPriorityArgs
	kinds *gate.Declines
}

func newReader(sub *subject) *reader {
	rule := &sub.rule
	return &reader{kinds: gate.NewDeclines(), args: configv1.PoolPriorityArgs{Pools: sub.configs, Capacity: configv1.Capacity{UnknownGrace: duration(rule.UnknownGrace), StaleAfter: duration(rule.StaleAfter),
		DeclineGrace: duration(time.Minute), NewPodDelay: duration(rule.NewPodDelay), HoldLimit: duration(rule.HoldLimit)}}}
}

// agrees reports whether the verdicts of a pool's groups match the pool's verdict. The pool holds the gate if one of
// its groups does, and has the reason of one of them.
func agrees(p gate.Verdict, groups []gate.Verdict) bool {
	holds, known := false, false
	for _, g := range groups {
		holds = holds || !g.Open
		known = known || g.Reason == p.Reason && g.Open == p.Open
	}
	return len(groups) == 0 || holds == !p.Open && known
}

// compare compares the scheduler's decision for a held pod with the reader's. It returns the number of compared
// decisions: 0 if the gate is open, otherwise 1.
func (r *reader) compare(t *testing.T, sub *subject, request gate.Request, decision *gate.Decision, now time.Time) int {
	t.Helper()
	if decision.Opens() {
		return 0
	}
	kind := request.AutoscalerKey()
	r.kinds.Learn(kind, decision)
	request.Pod.UID = types.UID(request.Pod.Name + now.String())
	request.Declined = func(group string) time.Time {
		return r.kinds.Declined(gate.KeyDigest(kind), group, request.Pod.UID, now)
	}
	want := sub.rule.Decide(request, sub.view, now)

	view := published.View{Args: &r.args, Capacity: *sub.view, Burst: request.Burst, Override: sub.rule.Override, Declines: r.kinds.Remembered(1000)}
	if request.NoRoomSince.Equal(request.UnschedulableSince) && request.IgnoredUntil.IsZero() && request.UnschedulableSince.Nanosecond() == 0 {
		if !request.UnschedulableSince.IsZero() { // the pod's condition shows the times
			request.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				LastTransitionTime: metav1.NewTime(request.UnschedulableSince)}}
		}
	} else {
		view.Waits = map[types.UID]published.Wait{request.Pod.UID: {Unschedulable: request.UnschedulableSince, NoRoom: request.NoRoomSince, Ignored: request.IgnoredUntil}}
	}
	data := must.Get(view.Encode(now))(t)
	read, err := published.DecodeView(data)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	pools := must.Get(read.Pools())(t)
	asked := read.Request(request.Pod, now)
	got := read.Decide(asked, pools, now)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("who reads what is published decides otherwise (-the scheduler,+the reader):\n%s\n%s\n%s", diff, data, sub.describe(now))
	}
	for i := range want.Regular {
		if groups := read.Groups(asked, pools, i, now); !agrees(want.Regular[i], groups) {
			t.Fatalf("pool %d says %+v, and its groups %+v\n%s\n%s", i, want.Regular[i], groups, data, sub.describe(now))
		}
	}
	return 1
}
