package watchdog

import (
	"context"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestCheck(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	w := New(c)
	stuck, done := make(chan struct{}), make(chan struct{})
	r := w.Reconciler("gate-taint", reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		<-stuck
		return reconcile.Result{}, nil
	}))
	began := make(chan struct{})
	go func() {
		close(began)
		_, _ = r.Reconcile(t.Context(), reconcile.Request{})
		close(done)
	}()
	<-began
	for i := 0; ; i++ { // until the reconciler has begun
		w.mu.Lock()
		n := len(w.began)
		w.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	end := w.begin("gate-taint") // a second piece of work, which ends in time
	c.Step(Limit)
	end()
	if err := w.Check(nil); err != nil {
		t.Errorf("after the limit: %v", err)
	}
	c.Step(time.Second)
	if err := w.Check(nil); err == nil || !strings.Contains(err.Error(), "gate-taint has not finished for 5m1s") {
		t.Errorf("after more: %v", err)
	}
	close(stuck)
	<-done
	if err := w.Check(nil); err != nil {
		t.Errorf("when it is done: %v", err)
	}
}

// TestNil: with a nil Watch, work goes on as usual.
func TestNil(t *testing.T) {
	var w *Watch
	w.begin("x")()
	if _, err := w.Reconciler("x", reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil })).Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Error(err)
	}
}
