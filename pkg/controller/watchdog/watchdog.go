// Package watchdog detects reconcilers that never finish.
package watchdog

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Limit is the longest time that one piece of work may take, such as one call of a reconciler. The timeout of a request
// to the API server is shorter than Limit.
const Limit = 5 * time.Minute

// Watch tracks the work in progress, such as running calls of reconcilers. It is safe for concurrent use. A nil Watch
// tracks nothing.
type Watch struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	began map[*string]time.Time // when the work began, by a pointer to its name
}

// New returns a Watch without any work.
func New(clock clock.PassiveClock) *Watch {
	return &Watch{clock: clock, began: map[*string]time.Time{}}
}

// begin records that the work begins. The caller calls end when the work has ended.
func (w *Watch) begin(what string) (end func()) {
	if w == nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began[&what] = w.clock.Now()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.began, &what)
	}
}

// Reconciler returns a reconciler that tracks each call of r under the name.
func (w *Watch) Reconciler(name string, r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		defer w.begin(name)()
		return r.Reconcile(ctx, request)
	})
}

// Check is a healthz.Checker. It returns an error if a piece of work has been in progress for longer than Limit.
func (w *Watch) Check(*http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	for what, began := range w.began {
		if took := now.Sub(began); took > Limit {
			return fmt.Errorf("%s has not finished for %s: it is stuck", *what, took.Round(time.Second))
		}
	}
	return nil
}
