package returner

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
)

// BackoffAnnotation holds the backoff of the pod's workload: the number of evictions in a row that did not help, and
// the end of the backoff. An eviction did not help if no replacement pod became ready on a VM.
const BackoffAnnotation = "poolpriority.dev/return-backoff"

// report logs that an eviction did not help. It also adds the workload's backoff to notes. writeNotes writes the
// backoff on the replacement pod, where the next leader reads it.
func (r *Returner) report(ctx context.Context, f *returnplan.Arrival, w *world) {
	landed, evicted := w.pods[f.Landed], klog.ObjectRef{}
	if m, ok := r.away[f.Evicted]; ok {
		evicted = klog.KObj(m.pod.GetPod())
	}
	klog.FromContext(ctx).Info("Returning a pod to a better pool did not help", "reason", f.Reason, "pod", evicted, "replacement", klog.KObj(landed), "inARow", f.InARow, "until", f.Until)
	if landed != nil {
		r.notes[landed.UID] = strconv.Itoa(f.InARow) + " " + f.Until.UTC().Format(time.RFC3339)
	}
}

// writeNotes writes the annotations in notes on their pods. It annotates a pod on a burst node only after the pod has
// started, because an earlier change may lose the pod (see controller.Tolerations). A pod that has changed since the
// round began may have been bound to a burst node. writeNotes tries such a pod again in the next round. If a write
// fails for another reason, writeNotes does not retry it, and the next leader does not get the backoff.
func (r *Returner) writeNotes(ctx context.Context, w *world) {
	for uid, note := range r.notes {
		pod := w.pods[uid]
		if pod != nil && w.burst[uid] && !refusal.Started(pod) {
			continue
		}
		if pod == nil || pod.DeletionTimestamp != nil {
			delete(r.notes, uid)
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": uid, "resourceVersion": pod.ResourceVersion, "annotations": map[string]string{BackoffAnnotation: note}}})
		if err == nil {
			_, err = r.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if apierrors.IsConflict(err) {
			continue
		}
		delete(r.notes, uid)
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "The backoff of a pod's workload is not recorded on the pod: the next leader will not apply the backoff", "pod", klog.KObj(pod))
		}
	}
}

// restore reads the backoffs that the previous leader wrote on pods.
func (r *Returner) restore(ctx context.Context) {
	pods, err := r.pods.List(labels.Everything())
	if err != nil {
		return // List does not fail with this selector
	}
	for _, pod := range pods {
		noted, owner := pod.Annotations[BackoffAnnotation], metav1.GetControllerOfNoCopy(pod)
		if noted == "" || owner == nil || pod.Spec.NodeName == "" {
			continue
		}
		count, at, _ := strings.Cut(noted, " ")
		failures, err := strconv.Atoi(count)
		until, timeErr := time.Parse(time.RFC3339, at)
		if err := errors.Join(err, timeErr); err != nil || failures < 1 {
			klog.FromContext(ctx).Info("Ignored an annotation with an invalid value", "pod", klog.KObj(pod), "annotation", BackoffAnnotation, "value", noted)
			continue
		}
		r.planner.Restore(r.clock.Now(), r.workloadOf(pod.Namespace, owner), failures, until)
	}
}
