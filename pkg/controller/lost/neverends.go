package lost

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// endsWithin bounds how long a Job may take to remove its finalizer from a pod that its kubelet has deleted.
const endsWithin = 10 * time.Second

// neverEnds reports whether the pod will never end by itself, and from when on that is certain. With
// podReplacementPolicy Failed, which a podFailurePolicy implies, a Job replaces a pod only after the pod has failed,
// and until then keeps its finalizer on the pod. A kubelet sets the phase of a pod that it ends to Failed.
// virtual-kubelet does not do that when it deletes a pod that never started (v1.11, node/pod.go), and the Job would
// wait for ever.
func neverEnds(pod *corev1.Pod) (known time.Time, is bool) {
	grace := pod.DeletionGracePeriodSeconds
	if pod.DeletionTimestamp == nil || grace == nil || *grace > 0 || pod.Status.Phase != corev1.PodPending || refusal.Began(pod) ||
		!slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		return time.Time{}, false
	}
	return pod.DeletionTimestamp.Add(endsWithin), true
}

// end sets the phase of a pod that never ends by itself to Failed, unless its Job removes the finalizer in time.
func (r *Reconciler) end(ctx context.Context, pod *corev1.Pod, known time.Time) (reconcile.Result, error) {
	if wait := known.Sub(r.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	pod.Status.Phase = corev1.PodFailed
	if err := r.Client.Status().Patch(ctx, pod, patch); err != nil {
		return controller.NotWritten(fmt.Errorf("marking pod %s as failed, so that its Job replaces it: %w", client.ObjectKeyFromObject(pod), err))
	}
	log.FromContext(ctx).Info("Marked a pod as failed: it was deleted from a burst node before it started, and its Job waits for its end")
	return reconcile.Result{}, nil
}
