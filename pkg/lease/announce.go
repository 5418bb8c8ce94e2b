package lease

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Announce wraps the lock so that its writes update the leadership. The leadership begins when this process first holds
// the lock. It ends when another process could hold the lock, or when this process releases the lock.
func Announce(lock resourcelock.Interface, leadership *Leadership) resourcelock.Interface {
	return &announcingLock{Interface: lock, leadership: leadership}
}

type announcingLock struct {
	resourcelock.Interface
	leadership *Leadership
}

// Create implements resourcelock.Interface.
func (l *announcingLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.announce(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (l *announcingLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.announce(record, func() error {
		err := l.Interface.Update(ctx, record)
		if !apierrors.IsConflict(err) || record.HolderIdentity != "" {
			return err
		}
		// A renewal that was in flight has changed the lease, so the release failed and this process still holds the
		// lease. Without a second try, no process could lead until the lease expires.
		current, _, getErr := l.Get(ctx)
		if getErr != nil || current.HolderIdentity != l.Identity() {
			return err
		}
		return l.Interface.Update(ctx, record)
	})
}

func (l *announcingLock) announce(record resourcelock.LeaderElectionRecord, write func() error) error {
	if record.HolderIdentity != l.Identity() {
		l.leadership.End() // the leadership must end before the lease is released
		return write()
	}
	asked := time.Now()
	if l.leadership.Ended(asked) {
		// The lease expired while this process was paused, so the cache of this process is stale. If no other process
		// took the lease, leader election would renew it. This error makes leader election give up, and the process
		// exits.
		return errors.New("the lease has expired: this scheduler must restart")
	}
	// Other processes measure the lease's duration from the time at which they see this write. That is later than
	// asked.
	if err := write(); err != nil {
		return err
	}
	l.leadership.Extend(asked.Add(time.Duration(record.LeaseDurationSeconds) * time.Second))
	return nil
}
