// Package refusal reads off a pod what the provider behind a virtual kubelet made of it: whether it refused the pod, and for what.
package refusal

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ReasonProviderFailed is the reason in the status of a pod that virtual-kubelet could not create. Source: virtual-kubelet v1.11, node/pod.go.
// The ACI connector never changes the status of such a pod again (azure-aci v1.6.4), whatever becomes of its container group.
const ReasonProviderFailed = "ProviderFailed"

// Class says for what a pod was refused.
type Class string

const (
	// OfPool is a refusal for what the pool is: a quota, a stockout, throttling, an error of the provider.
	OfPool Class = "Pool"
	// OfPod is a refusal for what the pod is: another one of the same template would be refused as well.
	OfPod Class = "Pod"
	// OfNeither is a refusal that says nothing of other pods, such as that of a second creation.
	OfNeither Class = "Neither"
	// Unknown is a refusal whose code is not known.
	Unknown Class = "Unknown"
)

// Refusal is what the provider said of a pod.
type Refusal struct {
	// Code is the provider's, such as ContainerGroupQuotaReached, or HTTP and the status; empty if there is none.
	Code  string
	Class Class
	// Message is what the provider said, shortened.
	Message string
}

// Of returns why the provider refused the pod, and whether it did.
func Of(pod *corev1.Pod) (Refusal, bool) {
	if pod.Status.Reason != ReasonProviderFailed {
		return Refusal{}, false
	}
	return classify(pod.Status.Message), true
}

// Started reports whether the pod has run: it runs, or has ended without being refused.
func Started(pod *corev1.Pod) bool {
	if pod.Status.Reason == ReasonProviderFailed {
		return false
	}
	switch pod.Status.Phase {
	case corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed:
		return true
	}
	return false
}

// BoundAt is when the pod was bound: by its condition, or if that is missing, at the latest when it was created.
func BoundAt(pod *corev1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}
