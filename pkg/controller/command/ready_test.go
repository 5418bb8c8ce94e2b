package command

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"poolpriority.dev/scheduler/test/must"
)

// answers is a lock that answers each request with err.
type answers struct {
	resourcelock.Interface
	err error
}

func (a *answers) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return nil, nil, a.err
}
func (a *answers) Create(context.Context, resourcelock.LeaderElectionRecord) error { return a.err }
func (a *answers) Update(context.Context, resourcelock.LeaderElectionRecord) error { return a.err }

// TestWatchedLock: a process is ready while the API server answers requests for the lease, whichever process holds it.
func TestWatchedLock(t *testing.T) {
	leases, away := schema.GroupResource{Resource: "leases"}, errors.New("connection refused")
	for _, tc := range []struct {
		name  string
		err   error
		after time.Duration // since the last good answer; 0: there was none
		want  string
	}{
		{"read", nil, time.Second, ""},
		{"there is none yet", apierrors.NewNotFound(leases, "l"), 0, ""},
		{"another was first", apierrors.NewConflict(leases, "l", nil), 0, ""},
		{"out of reach for a moment", away, staleLease, ""},
		{"out of reach", away, staleLease + time.Second, "the leader's lease has been out of reach since 2026-11-21T10:00:00Z: connection refused"},
		{"out of reach from the beginning", away, 0, "the leader's lease cannot be read: connection refused"},
		{"without the right", apierrors.NewForbidden(leases, "l", errors.New("no")), 0, "the leader's lease cannot be read: leases \"l\" is forbidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := clocktesting.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
			for _, call := range []func(*watchedLock) error{
				func(l *watchedLock) error { _, _, err := l.Get(t.Context()); return err },
				func(l *watchedLock) error { return l.Create(t.Context(), resourcelock.LeaderElectionRecord{}) },
				func(l *watchedLock) error { return l.Update(t.Context(), resourcelock.LeaderElectionRecord{}) },
			} {
				c.SetTime(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
				inner := &answers{}
				l := &watchedLock{Interface: inner, clock: c}
				if err := l.check(nil); err == nil || !strings.Contains(err.Error(), "has not been read yet") {
					t.Errorf("before anything: %v", err)
				}
				if tc.after > 0 {
					must.NoError(t, call(l))
					c.Step(tc.after)
				}
				inner.err = tc.err
				if err := call(l); !errors.Is(err, tc.err) {
					t.Errorf("the lock says %v, want %v", err, tc.err)
				}
				got := ""
				if err := l.check(nil); err != nil {
					got = err.Error()
				}
				if (got == "") != (tc.want == "") || !strings.HasPrefix(got, tc.want) {
					t.Errorf("%q, want %q", got, tc.want)
				}
			}
		})
	}
}

// TestElectionStopped: the check also fails if leader election sends no more requests for the lease.
func TestElectionStopped(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	l := &watchedLock{Interface: &answers{}, clock: c}
	if _, _, err := l.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Step(staleLease + time.Second)
	if err := l.check(nil); err == nil || !strings.Contains(err.Error(), "has not been read since 2026-11-21T10:00:00Z") {
		t.Errorf("%v", err)
	}
}

// informer has synced or not.
type informer struct {
	cache.Informer
	synced bool
}

func (i informer) HasSynced() bool { return i.synced }

// informers has one informer for every kind.
type informers struct {
	cache.Cache
	informer informer
}

func (i informers) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return i.informer, nil
}

func TestCachesSynced(t *testing.T) {
	for _, tc := range []struct {
		synced bool
		want   string
	}{{true, ""}, {false, "the cache of *v1.Node has not been filled yet"}} {
		check := must.Get(cachesSynced(t.Context(), informers{informer: informer{synced: tc.synced}}, &corev1.Node{}))(t)
		got := ""
		if err := check(nil); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("synced %t: %q, want %q", tc.synced, got, tc.want)
		}
	}
}
