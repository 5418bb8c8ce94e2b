package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// ConflictRetry is how long after a conflict an object is looked at again. Mostly the change that it was about comes from the cache
// before that, and has it looked at.
const ConflictRetry = time.Second

// NotWritten is the answer of a reconciler that could not write an object. A conflict is no error: somebody else wrote first, and what
// they wrote is looked at next. An object that is gone needs nothing.
func NotWritten(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: ConflictRetry}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
