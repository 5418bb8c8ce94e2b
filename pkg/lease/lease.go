// Package lease tracks until when this process may act as the leader, and fences its writes by that.
package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// ErrNotLeading is returned for requests after the leadership has ended.
var ErrNotLeading = errors.New("this scheduler's lease has run out: another one may schedule now")

// Leadership is a process's state of its lease. A scheduler that was stopped for longer than the lease lasts (a frozen
// process, a paused machine) resumes with a stale cache, and would bind pods onto nodes that another leader has filled
// meanwhile: leader election notices only afterwards. Its bindings therefore end with the lease, and an expired lease
// is not renewed: the process has to restart. A nil Leadership is for a process without leader election: its Bound and
// Pods never end.
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

// Extend notes that this process leads and that no other can before the time given. It has no effect once the
// leadership has ended.
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

// End notes that this process gives its lease up: it does nothing more as the leader.
func (l *Leadership) End() { l.end(ErrNotLeading) }

// Ended reports whether the process has led and can be sure of it no longer. Either clock ends the lease: the monotonic
// one stands still while a machine is suspended, and the other may be set back.
func (l *Leadership) Ended(now time.Time) bool {
	l.mu.Lock()
	over := !l.until.IsZero() && (!now.Before(l.until) || !now.Round(0).Before(l.until.Round(0)))
	l.mu.Unlock()
	if over {
		l.End()
	}
	return l.ended.Err() != nil
}

// check returns an error if the process does not lead, or no longer.
func (l *Leadership) check() error {
	l.mu.Lock()
	begun := !l.until.IsZero()
	l.mu.Unlock()
	if !begun || l.Ended(time.Now()) {
		return ErrNotLeading
	}
	return nil
}

// Bound returns a context that ends with the leadership, or an error if it has ended. It has no deadline: requests that
// wait for their turn (client-go limits their rate) would be refused at once if that is later, although the lease will
// have been renewed by then.
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

// Pods returns a client for pods that shares the rate limit of the one given, which was made of the configuration, and
// asks about the leadership once more when that lets a request pass. Without a configuration it is the client given.
func (l *Leadership) Pods(config *rest.Config, shared typedcorev1.CoreV1Interface) (typedcorev1.PodsGetter, error) {
	if l == nil || config == nil {
		return shared, nil
	}
	config = rest.CopyConfig(config)
	config.RateLimiter = shared.RESTClient().GetRateLimiter()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &fence{next: next, leadership: l} })
	return typedcorev1.NewForConfig(config)
}

// Fence stops all writes of the client when the leadership ends: writes beside the scheduling cycle (preemption deletes
// pods, API calls wait in a queue) do not check the lease themselves. The client is part of a kubernetes.Clientset,
// whose clients share connections, and must not be in use yet.
func (l *Leadership) Fence(client rest.Interface) error {
	c, ok := client.(*rest.RESTClient)
	if !ok || c == nil || c.Client == nil {
		return fmt.Errorf("fencing the client: it is a %T without an HTTP client", client)
	}
	next := c.Client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	c.Client.Transport = &fence{next: next, leadership: l, reads: true}
	return nil
}

// fence lets requests pass while the process leads.
type fence struct {
	next       http.RoundTripper
	leadership *Leadership
	reads      bool // those that only read pass at any time
}

// RoundTrip implements http.RoundTripper.
func (f *fence) RoundTrip(request *http.Request) (*http.Response, error) {
	if f.reads && request.Method == http.MethodGet {
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
