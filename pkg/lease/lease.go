// Package lease tracks until when this process may act as the leader, and stops its writes after that.
package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ErrNotLeading is returned for requests before the leadership begins and after it has ended.
var ErrNotLeading = errors.New("this scheduler's lease has expired: another scheduler may lead now")

// Leadership tracks the lease of this process. If a process or its machine is paused for longer than the lease lasts,
// the process resumes with a stale cache. Leader election notices the lost lease only later. Until then, the process
// could bind pods to nodes that another leader has filled meanwhile. Therefore the process binds pods only before its
// lease expires. Once its lease has expired, the process never renews it. To lead again, the process has to restart.
// Bound of a nil Leadership sets no limit.
type Leadership struct {
	began chan struct{}
	ended context.Context
	end   context.CancelCauseFunc

	mu    sync.Mutex
	until time.Time // zero before the lease is held for the first time
	timer *time.Timer
}

// NewLeadership returns the leadership of a process that does not lead yet.
func NewLeadership() *Leadership {
	l := &Leadership{began: make(chan struct{})}
	l.ended, l.end = context.WithCancelCause(context.Background())
	return l
}

// Began returns a channel that is closed when the process leads for the first time.
func (l *Leadership) Began() <-chan struct{} { return l.began }

// Extend records that this process leads and that no other process can lead before the given time. It has no effect
// once the leadership has ended.
func (l *Leadership) Extend(until time.Time) {
	now := time.Now()
	if l.Ended(now) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() {
		close(l.began)
		l.timer = time.AfterFunc(until.Sub(now), l.End)
	} else {
		l.timer.Reset(until.Sub(now))
	}
	l.until = until
}

// End records that this process gives up its lease. After this call, the process must not act as the leader.
func (l *Leadership) End() { l.end(ErrNotLeading) }

// Ended reports whether the leadership has ended. The leadership has ended if the process has led and cannot be sure
// that it still leads. Ended checks both the monotonic clock, which stops while a machine is suspended, and the wall
// clock, which may be set back.
func (l *Leadership) Ended(now time.Time) bool {
	l.mu.Lock()
	over := !l.until.IsZero() && (!now.Before(l.until) || !now.Round(0).Before(l.until.Round(0)))
	l.mu.Unlock()
	if over {
		l.End()
	}
	return l.ended.Err() != nil
}

// check returns an error if the process does not lead yet or no longer leads.
func (l *Leadership) check() error {
	l.mu.Lock()
	begun := !l.until.IsZero()
	l.mu.Unlock()
	if !begun || l.Ended(time.Now()) {
		return ErrNotLeading
	}
	return nil
}

// Bound returns a context that is canceled when the leadership ends. If the process does not lead, Bound returns an
// error. The context has no deadline. With a deadline, client-go would reject a request at once if the rate limiter
// would delay it beyond the deadline. But the lease may be renewed before the deadline.
func (l *Leadership) Bound(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if l == nil {
		return ctx, func() {}, nil
	}
	if err := l.check(); err != nil {
		return nil, nil, err
	}
	bounded, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ended, func() { cancel(ErrNotLeading) })
	return bounded, func() { stop(); cancel(nil) }, nil
}

// Config returns a copy of config with its own rate limiter, so that the requests do not wait behind other requests of
// this process. After the rate limiter has let a write pass, its clients check the leadership again, as Fence does.
func (l *Leadership) Config(config *rest.Config, qps float32, burst int) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.RateLimiter = qps, burst, nil
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &fence{next: next, leadership: l} })
	return config
}

// Fence makes the client reject all writes while this process does not lead. Some writes happen outside the scheduling
// cycle and do not check the lease themselves, such as preemption's pod deletions and queued API calls. The client must
// be part of a kubernetes.Clientset and must not be in use yet. Fence applies to all clients of the Clientset, because
// these clients share one http.Client.
func (l *Leadership) Fence(client rest.Interface) error {
	c, ok := client.(*rest.RESTClient)
	if !ok || c == nil || c.Client == nil {
		return fmt.Errorf("fencing the client: it is a %T without an HTTP client", client)
	}
	next := c.Client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	c.Client.Transport = &fence{next: next, leadership: l}
	return nil
}

// fence is a RoundTripper that rejects all requests but GET while the process does not lead.
type fence struct {
	next       http.RoundTripper
	leadership *Leadership
}

// RoundTrip implements http.RoundTripper.
func (f *fence) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet {
		return f.next.RoundTrip(request)
	}
	if err := f.leadership.check(); err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	return f.next.RoundTrip(request)
}
