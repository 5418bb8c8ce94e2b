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

// staleLease bounds how long the lease may be out of reach while the controller is ready. A leader gives up earlier.
const staleLease = 3 * leaseDuration

// watchedLock is a lock that records when the API server last answered a request for it. Leader election sends such
// requests regularly, whether or not this process leads.
type watchedLock struct {
	resourcelock.Interface
	clock    clock.PassiveClock
	answered atomic.Pointer[time.Time] // nil: never
	refusal  atomic.Pointer[error]     // the error of the last request; nil: there was none
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

// note records the answer. The API server also answers if the lease does not exist yet, or if another process changed
// it first.
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

// check returns an error if the lease has been out of reach for staleLease. This process could then neither lead nor
// take over. It is a healthz.Checker.
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

// cachesSynced starts informers for the kinds of the objects, also in a process that stands by. It returns a
// healthz.Checker that fails until they have synced.
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
