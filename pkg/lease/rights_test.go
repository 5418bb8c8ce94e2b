package lease

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"
)

// account answers reviews of its rights to the lease.
type account struct {
	may    atomic.Pointer[[]string] // the verbs
	broken string                   // the authorizer's error
	err    error
}

func (a *account) rights(exists bool) (*Rights, *testingclock.FakeClock) {
	c := fake.NewClientset()
	if exists {
		c = fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "lease"}})
	}
	c.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		asked := review.Spec.ResourceAttributes
		ours := asked.Namespace == "mine" && asked.Resource == "leases" && asked.Group == "coordination.k8s.io" && (asked.Name == "lease") == (asked.Verb != "create")
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: ours && slices.Contains(*a.may.Load(), asked.Verb), EvaluationError: a.broken}
		return true, review, a.err
	})
	clock := testingclock.NewFakeClock(time.Now())
	return &Rights{Client: c, Namespace: "mine", Name: "lease", Clock: clock}, clock
}

func (a *account) allow(verbs string) {
	all := strings.Fields(verbs)
	a.may.Store(&all)
}

// TestRightsMissing: the error lists the verbs that the process lacks. If the rights cannot be checked, none counts as
// missing.
func TestRightsMissing(t *testing.T) {
	for _, tc := range []struct {
		name, may, broken string
		exists            bool
		err               error
		want              string
	}{
		{name: "all", may: "get update create"},
		{name: "nothing", want: "may not get or update or create this lease in the namespace mine"},
		{name: "no update", may: "get create", want: "may not update this lease"},
		{name: "no create", may: "get update", want: "may not create this lease"},
		{name: "no create of what exists", may: "get update", exists: true},
		{name: "the authorizer is broken", broken: "a webhook is down"},
		{name: "nobody answers", err: errors.New("no")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := &account{broken: tc.broken, err: tc.err}
			a.allow(tc.may)
			r, _ := a.rights(tc.exists)
			err := r.missing(t.Context())
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("missing: %v, want %q", err, tc.want)
			}
		})
	}
}

// step advances the clock by d whenever a goroutine waits for it, until done is closed.
func step(clock *testingclock.FakeClock, d time.Duration, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
			if clock.HasWaiters() {
				clock.Step(d)
			}
		}
	}
}

// TestAwait: Await waits for rights that are granted a moment later, but not for long.
func TestAwait(t *testing.T) {
	for _, come := range []bool{true, false} {
		a := &account{}
		a.allow("")
		r, clock := a.rights(false)
		answer := make(chan error)
		go func() { answer <- r.Await(t.Context()) }()
		for !clock.HasWaiters() {
			time.Sleep(time.Millisecond)
		}
		if come {
			a.allow("get update create")
		}
		done := make(chan struct{})
		go step(clock, rightsRetry, done)
		if err := <-answer; (err == nil) != come {
			t.Errorf("the rights come: %t; %v", come, err)
		}
		close(done)
	}
}

// TestWatch: the rights count as lost when two checks in a row find them missing.
func TestWatch(t *testing.T) {
	a := &account{}
	a.allow("get update create")
	r, clock := a.rights(false)
	looks := 0
	r.Client.(*fake.Clientset).PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes.Verb == "get" {
			looks++
			if looks == 2 || looks >= 4 {
				a.allow("")
			} else {
				a.allow("get update create")
			}
		}
		return false, nil, nil
	})
	done := make(chan struct{})
	go step(clock, rightsInterval, done)
	r.Watch(t.Context(), func(error) { close(done) })
	if looks != 5 {
		t.Errorf("they counted as gone after %d looks, want 5", looks)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.Watch(ended, func(err error) { t.Errorf("lost with the context: %v", err) })
}
