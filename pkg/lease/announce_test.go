package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// recorder is a lock that records whether it was written, and whether the leadership had ended by then.
type recorder struct {
	resourcelock.Interface
	err        error
	leadership *Leadership
	written    bool
	endedFirst bool // the leadership had ended when the lock was written
}

func (r *recorder) Identity() string { return "me" }

func (r *recorder) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	r.written, r.endedFirst = true, r.leadership.ended.Err() != nil
	return r.err
}

func (r *recorder) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.Create(ctx, record)
}

// TestAnnounce: the leadership lasts for the lease's duration, counted from before the request. If the lease is
// released, the leadership ends before another process can take the lease.
func TestAnnounce(t *testing.T) {
	failed := errors.New("no")
	for _, tc := range []struct {
		name, holder string
		ranOut       bool
		err          error

		written, extended, endedFirst bool
	}{
		{name: "renewed", holder: "me", written: true, extended: true},
		{name: "not renewed", holder: "me", err: failed, written: true},
		{name: "run out: not taken up again, though it be free", holder: "me", ranOut: true},
		{name: "released", holder: "", written: true, endedFirst: true},
		{name: "its release failed", holder: "", err: failed, written: true, endedFirst: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, write := range []func(resourcelock.Interface, context.Context, resourcelock.LeaderElectionRecord) error{
				resourcelock.Interface.Create, resourcelock.Interface.Update,
			} {
				l := NewLeadership()
				held := time.Now().Add(time.Second)
				if tc.ranOut {
					held = time.Now().Add(-time.Second)
				}
				l.Extend(held)
				r := &recorder{err: tc.err, leadership: l}
				before := time.Now()
				err := write(Announce(r, l), t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: tc.holder, LeaseDurationSeconds: 10})
				after := time.Now()
				if tc.ranOut != (err != nil && tc.err == nil) || !tc.ranOut && !errors.Is(err, tc.err) {
					t.Errorf("error %v, want %v", err, tc.err)
				}
				if r.written != tc.written || r.endedFirst != tc.endedFirst {
					t.Errorf("written: %t, with the leadership ended before: %t, want %t, %t", r.written, r.endedFirst, tc.written, tc.endedFirst)
				}
				if !tc.extended && !l.until.Equal(held) {
					t.Errorf("the leadership lasts until %v, want %v as before", l.until, held)
				}
				if tc.extended && (l.until.Before(before.Add(10*time.Second)) || l.until.After(after.Add(10*time.Second))) {
					t.Errorf("the leadership lasts until %v, want 10 s after %v", l.until, before)
				}
			}
		})
	}
}
