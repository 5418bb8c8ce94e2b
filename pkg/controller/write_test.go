package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestStuckReconciler: a call that does not end in time ends the process, and one that ends does not.
func TestStuckReconciler(t *testing.T) {
	for _, tc := range []struct {
		took time.Duration
		want string
	}{{stuckAfter - 1, ""}, {stuckAfter + 1, "gate-taint of /node has not finished for 5m0s: it is stuck"}} {
		synctest.Test(t, func(t *testing.T) {
			died := ""
			r := endsWithin(stuckAfter, "gate-taint", reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				time.Sleep(tc.took)
				return reconcile.Result{}, nil
			}), func(message string) { died = message })
			_, _ = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "node"}})
			time.Sleep(time.Hour)
			synctest.Wait()
			if died != tc.want {
				t.Errorf("after %v: %q, want %q", tc.took, died, tc.want)
			}
		})
	}
}
