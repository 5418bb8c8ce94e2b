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

// endsWithin is the time that a Job has to remove its finalizer from a pod after the kubelet has deleted the pod.
const endsWithin = 10 * time.Second

// neverEnds reports whether the pod will never end by itself. known is the time from which on this is certain. A Job
// with podReplacementPolicy Failed, which a podFailurePolicy implies, replaces a pod only after the pod has failed.
// Until then, the Job keeps its finalizer on the pod. When a kubelet ends a pod, it sets the phase of the pod to
// Failed. When virtual-kubelet deletes a pod that never started, it does not set the phase (v1.11, node/pod.go), and
// the Job would wait for ever.
func neverEnds(pod *corev1.Pod) (known time.Time, is bool) {
	grace := pod.DeletionGracePeriodSeconds
	if pod.DeletionTimestamp == nil || grace == nil || *grace > 0 || pod.Status.Phase != corev1.PodPending || refusal.Began(pod) ||
		!slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		return time.Time{}, false
	}
	return pod.DeletionTimestamp.Add(endsWithin), true
}

// end sets the phase of a pod that never ends by itself to Failed. It waits until known, because the Job may still
// remove its finalizer.
func (r *Reconciler) end(ctx context.Context, pod *corev1.Pod, known time.Time) (reconcile.Result, error) {
	if wait := known.Sub(r.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	pod.Status.Phase = corev1.PodFailed
	if err := r.Client.Status().Patch(ctx, pod, patch); err != nil {
		return controller.NotWritten(fmt.Errorf("marking pod %s as failed, so that its Job replaces it: %w", client.ObjectKeyFromObject(pod), err))
	}
	log.FromContext(ctx).Info("Marked a pod as failed: it was deleted from a burst node before it started, and its Job waits until the pod fails")
	return reconcile.Result{}, nil
}
