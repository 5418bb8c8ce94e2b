package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// recorder is a lock and a leadership that write down what they are told, in order.
type recorder struct {
	resourcelock.Interface
	err   error
	calls []string
	until time.Time
	ended bool
}

func (r *recorder) Identity() string { return "me" }

func (r *recorder) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	r.calls = append(r.calls, "written")
	return r.err
}

func (r *recorder) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.Create(ctx, record)
}

func (r *recorder) Extend(until time.Time) { r.calls, r.until = append(r.calls, "extended"), until }
func (r *recorder) End()                   { r.calls = append(r.calls, "ended") }
func (r *recorder) Ended(time.Time) bool   { return r.ended }

// TestAnnouncingLock: the lease counts from before it was asked for, and one that is given up has ended before anybody else can
// take it.
func TestAnnouncingLock(t *testing.T) {
	for _, tc := range []struct {
		name, holder string
		ended        bool
		err          error
		want         []string
	}{
		{name: "renewed", holder: "me", want: []string{"written", "extended"}},
		{name: "not renewed", holder: "me", err: errors.New("no"), want: []string{"written"}},
		{name: "run out: not taken up again, though it be free", holder: "me", ended: true},
		{name: "released", holder: "", want: []string{"ended", "written"}},
		{name: "its release failed", holder: "", err: errors.New("no"), want: []string{"ended", "written"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, write := range []func(*announcingLock, context.Context, resourcelock.LeaderElectionRecord) error{
				(*announcingLock).Create, (*announcingLock).Update,
			} {
				r := &recorder{err: tc.err, ended: tc.ended}
				before := time.Now()
				err := write(&announcingLock{Interface: r, leadership: r}, t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: tc.holder, LeaseDurationSeconds: 10})
				after := time.Now()
				if tc.ended != (err != nil && tc.err == nil) || !tc.ended && !errors.Is(err, tc.err) || !slices.Equal(r.calls, tc.want) {
					t.Errorf("calls %v, error %v, want %v, %v", r.calls, err, tc.want, tc.err)
				}
				if slices.Contains(tc.want, "extended") && (r.until.Before(before.Add(10*time.Second)) || r.until.After(after.Add(10*time.Second))) {
					t.Errorf("until %v, want 10 s after %v", r.until, before)
				}
			}
		})
	}
}
