package controller

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// conflictRetry is the delay before an object is reconciled again after a conflict. Usually the watch event of the
// conflicting write triggers the reconciler before this delay ends.
const conflictRetry = time.Second

// notWritten returns the result of a reconciler that could not write an object. After a conflict, notWritten returns no
// error, and the object is reconciled again after conflictRetry. If the object no longer exists, notWritten returns no
// error either.
func notWritten(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// stuckAfter is the longest time that one call of a reconciler may take. The timeout of a request to the API server is
// shorter.
const stuckAfter = 5 * time.Minute

// endsWithin returns a reconciler that calls r. If a call takes longer than the limit, endsWithin calls die with a message
// that has the name.
func endsWithin(limit time.Duration, name string, r reconcile.Reconciler, die func(message string)) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		defer time.AfterFunc(limit, func() { die(fmt.Sprintf("%s of %s has not finished for %v: it is stuck", name, request, limit)) }).Stop()
		return r.Reconcile(ctx, request)
	})
}

// die ends the process, so that it starts anew, and prints where each goroutine is.
func die(message string) {
	debug.SetTraceback("all")
	panic(message)
}
