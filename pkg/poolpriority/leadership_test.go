package poolpriority

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
)

// TestLeadership: a scheduler binds while its lease lasts, and by either clock no longer.
func TestLeadership(t *testing.T) {
	began := time.Now()
	until := began.Add(10 * time.Second)
	for _, tc := range []struct {
		name string
		l    func() *Leadership
		now  time.Time
		want error
	}{
		{name: "the only scheduler", l: func() *Leadership { return nil }, now: began.AddDate(1, 0, 0)},
		{name: "not yet", l: NewLeadership, now: began, want: errNotLeading},
		{name: "leading", l: func() *Leadership { l := NewLeadership(); l.Extend(until); return l }, now: until.Add(-time.Nanosecond)},
		{name: "the lease has run out", l: func() *Leadership { l := NewLeadership(); l.Extend(until); return l }, now: until, want: errNotLeading},
		{name: "the machine was suspended: the monotonic clock stood still",
			l:   func() *Leadership { l := NewLeadership(); l.Extend(until.Round(0)); return l },
			now: began.Add(time.Hour).Round(0), want: errNotLeading},
		{name: "given up", l: func() *Leadership { l := NewLeadership(); l.Extend(until); l.End(); return l }, now: began, want: errNotLeading},
		{name: "renewed", l: func() *Leadership { l := NewLeadership(); l.Extend(began); l.Extend(until); return l }, now: began.Add(time.Second)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := tc.l()
			ctx, cancel, err := l.bound(t.Context(), tc.now)
			if !errors.Is(err, tc.want) {
				t.Fatalf("error %v, want %v", err, tc.want)
			}
			if err != nil {
				return
			}
			defer cancel()
			if end, ok := ctx.Deadline(); l != nil && (!ok || !end.Equal(until)) {
				t.Errorf("the binding's deadline is %v (%t), want the lease's end %v", end, ok, until)
			}
		})
	}
}

// TestBindAfterTheLease: nothing is sent to the API server once the lease has run out, and a binding that waits for its turn ends
// with it.
func TestBindAfterTheLease(t *testing.T) {
	h := newHarness(t, aks(t))
	client := h.sched.Profiles[ourProfile].ClientSet().(*fake.Clientset)
	h.plugin.leadership = NewLeadership()
	h.plugin.leadership.Extend(time.Now().Add(-time.Second))
	before := len(client.Actions())
	if status := h.plugin.Bind(h.ctx, nil, pod("p").Obj(), "user"); status.IsSuccess() || !errors.Is(status.AsError(), errNotLeading) {
		t.Errorf("status %v, want %v", status, errNotLeading)
	}
	if actions := client.Actions()[before:]; len(actions) > 0 {
		t.Errorf("the API server was asked: %v", actions)
	}
	h.plugin.leadership.Extend(time.Now().Add(20 * time.Millisecond))
	ctx, cancel, err := h.plugin.leadership.bound(h.ctx, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), errNotLeading) {
		t.Errorf("ended by %v, want %v", context.Cause(ctx), errNotLeading)
	}
}
