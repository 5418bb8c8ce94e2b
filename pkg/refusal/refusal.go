// Package refusal determines from a pod whether the provider behind a virtual kubelet refused the pod, and why.
package refusal

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReasonProviderFailed is the reason in the status of a pod that virtual-kubelet could not create. Source:
// virtual-kubelet v1.11, node/pod.go. The ACI connector never changes the status of such a pod again (azure-aci
// v1.6.4), whatever becomes of its container group.
const ReasonProviderFailed = "ProviderFailed"

// Cause is why a provider refused a pod.
type Cause string

const (
	// PoolError is a refusal because of the pool: a quota, a stockout, throttling, an error of the provider.
	PoolError Cause = "Pool"
	// PodError is a refusal because of the pod: another pod of the same template would be refused as well.
	PodError Cause = "Pod"
	// NeitherError is a refusal that does not concern other pods, such as the refusal of a second creation.
	NeitherError Cause = "Neither"
	// Unknown is a refusal with an unknown code.
	Unknown Cause = "Unknown"
)

// Refusal is the provider's answer for a refused pod.
type Refusal struct {
	// Code is the provider's code, such as ContainerGroupQuotaReached, or one of our own. Without such a code it is the
	// HTTP status, such as HTTP429, or else the reason in the status of a failed pod; empty if there is none of these.
	Code  string
	Cause Cause
	// Message is the provider's message, shortened.
	Message string
	// MayPass is set for a PodError that may pass without a change of the pod: an image or a secret that did not exist
	// yet, or an unknown code.
	MayPass bool
}

// Of returns why the provider refused the pod, and whether it did. A pod was refused if virtual-kubelet reports a
// refusal, or if the pod failed before any container ran, without being deleted or disrupted.
func Of(pod *corev1.Pod) (Refusal, bool) {
	if pod.Status.Reason == ReasonProviderFailed {
		return classify(pod.Status.Message), true
	}
	if pod.Status.Phase != corev1.PodFailed || Began(pod) || pod.DeletionTimestamp != nil || isDisrupted(pod) {
		return Refusal{}, false
	}
	r := classify(pod.Status.Message)
	if r.Code == "" {
		r.Code = pod.Status.Reason
	}
	return r, true
}

// isDisrupted reports whether Kubernetes ended the pod, by eviction, by preemption, or together with its node.
func isDisrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

// Started reports whether the whole pod runs, or has ended after it ran. If a pod that has not started changes, the ACI
// connector may create it a second time, and lose it.
func Started(pod *corev1.Pod) bool {
	if pod.Status.Reason == ReasonProviderFailed {
		return false
	}
	switch pod.Status.Phase {
	case corev1.PodRunning, corev1.PodSucceeded:
		return true
	case corev1.PodFailed:
		return hasRun(pod)
	}
	return false
}

// Began reports whether any container of the pod has run, such as an init container. The provider has then accepted the
// pod.
func Began(pod *corev1.Pod) bool {
	return Started(pod) || pod.Status.Reason != ReasonProviderFailed && hasRun(pod)
}

// MayStart reports whether a pod on a burst pool's node may still start. Such a pod has neither started nor been
// refused, and is not ending. If a kubelet withdraws a refusal, the pod may start after all.
func MayStart(pod *corev1.Pod) bool {
	return pod.Status.Reason != ReasonProviderFailed && pod.Status.Phase != corev1.PodFailed && pod.DeletionTimestamp == nil && !Began(pod)
}

// TimeToStart returns how long a pod may take to start. It doubles startWithin for each time in a row that a pod of the
// owner was late, at most four times.
func TimeToStart(startWithin time.Duration, late int) time.Duration {
	return startWithin << min(max(late, 0), 4)
}

func hasRun(pod *corev1.Pod) bool {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			if s.State.Running != nil || s.State.Terminated != nil && !s.State.Terminated.StartedAt.IsZero() || s.LastTerminationState.Terminated != nil {
				return true
			}
		}
	}
	return false
}

// BoundAtAnnotation is the annotation with the time at which the scheduler bound a pod to a burst node, in RFC 3339.
// The scheduler writes it in the Binding. The pod's status does not have this time, because the ACI connector drops the
// condition PodScheduled. When the pod runs, the connector sets the condition again, with the time of the pod's
// creation (azure-aci v1.6.4).
const BoundAtAnnotation = "poolpriority.dev/bound-at"

// BoundAt returns when the pod was bound. It is the latest of the times in its annotation, its condition PodScheduled
// and its creation timestamp.
func BoundAt(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	if said, err := time.Parse(time.RFC3339, pod.Annotations[BoundAtAnnotation]); err == nil && said.After(at) {
		at = said
	}
	return at
}

// OwnerOf returns the UID of the pod's controller, or "".
func OwnerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return owner.UID
	}
	return ""
}
