package poolpriority

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// errNotLeading says why a pod is not bound.
var errNotLeading = errors.New("this scheduler's lease has run out: another one may schedule now")

// Leadership is what the plugin knows of its scheduler's lease. A scheduler that was stopped for longer than the lease lasts (a
// frozen process, a machine that was paused) wakes with the cluster of that time in its cache, and would bind what it was about to
// bind, onto nodes that another leader has filled meanwhile: leader election notices only afterwards. Its bindings therefore have the
// lease's end for a deadline.
type Leadership struct {
	began     chan struct{}
	beganOnce sync.Once
	until     atomic.Pointer[time.Time] // nil: not leading
}

// NewLeadership returns the leadership of a scheduler that does not lead yet.
func NewLeadership() *Leadership { return &Leadership{began: make(chan struct{})} }

// Extend notes that this scheduler leads and that no other can before the time given.
func (l *Leadership) Extend(until time.Time) {
	l.until.Store(&until)
	l.beganOnce.Do(func() { close(l.began) })
}

// End notes that this scheduler gives its lease up: it binds nothing from here on.
func (l *Leadership) End() { l.until.Store(nil) }

// bound returns a context that ends with the lease, or an error if the lease has ended. A nil leadership never ends: the scheduler
// is the only one.
func (l *Leadership) bound(ctx context.Context, now time.Time) (context.Context, context.CancelFunc, error) {
	if l == nil {
		return ctx, func() {}, nil
	}
	until := l.until.Load()
	// By either clock: the monotonic one stands still while a machine is suspended, and the other may be set back.
	if until == nil || !now.Before(*until) || !now.Round(0).Before(until.Round(0)) {
		return nil, nil, errNotLeading
	}
	bounded, cancel := context.WithDeadlineCause(ctx, *until, errNotLeading)
	return bounded, cancel, nil
}
