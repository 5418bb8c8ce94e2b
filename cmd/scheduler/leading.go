package main

import (
	"context"
	"sync"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// announcingLock closes a channel when this process first holds the lock. One that loses it ends.
type announcingLock struct {
	resourcelock.Interface
	once    sync.Once
	leading chan<- struct{}
}

// Create implements resourcelock.Interface.
func (l *announcingLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.announce(l.Interface.Create(ctx, record), record)
}

// Update implements resourcelock.Interface.
func (l *announcingLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.announce(l.Interface.Update(ctx, record), record)
}

func (l *announcingLock) announce(err error, record resourcelock.LeaderElectionRecord) error {
	if err == nil && record.HolderIdentity == l.Identity() {
		l.once.Do(func() { close(l.leading) })
	}
	return err
}
