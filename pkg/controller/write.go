package controller

import (
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
