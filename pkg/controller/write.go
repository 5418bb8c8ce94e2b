package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// conflictRetry is how long after a conflict an object is looked at again. Mostly the change that it was about comes from the cache
// before that, and has it looked at.
const conflictRetry = time.Second

// notWritten is the answer of a reconciler that could not write an object. A conflict is no error: somebody else wrote first, and what
// they wrote is looked at next. An object that is gone needs nothing.
func notWritten(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// double doubles the duration n times, up to the limit.
func double(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
