package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// If the API server answers no request for the lease within staleLease, the controller is not ready. A leader stops
// leading earlier, after renewDeadline.
const staleLease = 3 * leaseDuration

// watchedLock is a lock that records when the API server last answered a request for the lease. Leader election sends
// such requests regularly, in the leader and in standby processes.
type watchedLock struct {
	resourcelock.Interface
	clock    clock.PassiveClock
	answered atomic.Pointer[time.Time] // nil: never
	refusal  atomic.Pointer[error]     // the error of the last request; nil: it was answered
}

// Get implements resourcelock.Interface.
func (l *watchedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	return record, raw, l.note(err)
}

// Create implements resourcelock.Interface.
func (l *watchedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.note(l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *watchedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.note(l.Interface.Update(ctx, record))
}

// note records the result of a request. The errors NotFound, Conflict and AlreadyExists count as answers, because the
// API server returned them.
func (l *watchedLock) note(err error) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		now := l.clock.Now()
		l.answered.Store(&now)
		l.refusal.Store(nil)
	} else {
		l.refusal.Store(&err)
	}
	return err
}

// check is a healthz.Checker. It returns an error if the API server has not answered a request for the lease within
// staleLease. Without such answers, this process can neither stay nor become the leader.
func (l *watchedLock) check(*http.Request) error {
	why := l.refusal.Load()
	switch answered := l.answered.Load(); {
	case answered == nil && why != nil:
		return fmt.Errorf("the leader's lease cannot be read: %w", *why)
	case answered == nil:
		return errors.New("the leader's lease has not been read yet")
	case l.clock.Since(*answered) > staleLease && why != nil:
		return fmt.Errorf("the leader's lease has been out of reach since %s: %w", answered.UTC().Format(time.RFC3339), *why)
	case l.clock.Since(*answered) > staleLease:
		return fmt.Errorf("the leader's lease has not been read since %s", answered.UTC().Format(time.RFC3339))
	}
	return nil
}

// cachesSynced starts an informer for the kind of each object, in the leader and in standby processes. It returns a
// healthz.Checker that fails until all these informers have synced.
func cachesSynced(ctx context.Context, c cache.Cache, kinds ...client.Object) (func(*http.Request) error, error) {
	synced := map[string]func() bool{}
	for _, kind := range kinds {
		informer, err := c.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", kind, err)
		}
		synced[fmt.Sprintf("%T", kind)] = informer.HasSynced
	}
	return func(*http.Request) error {
		for kind, synced := range synced {
			if !synced() {
				return fmt.Errorf("the cache of %s has not been filled yet", kind)
			}
		}
		return nil
	}, nil
}
