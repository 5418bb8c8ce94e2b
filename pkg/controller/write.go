package controller

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// ConflictRetry is how long after a conflict an object is reconciled again. Mostly the cache delivers the other change
// before that.
const ConflictRetry = time.Second

// NotWritten returns the result of a reconciler that could not write an object. A conflict is no error: the object is
// reconciled again. An object that is gone needs nothing.
func NotWritten(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: ConflictRetry}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
