package karpenter

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// Component is the source of Karpenter's events. Source: sigs.k8s.io/karpenter/pkg/operator, AppName.
	Component = "karpenter"
	// Silence is how long a pod waits for a NodePool if Karpenter writes no event on the pod. Karpenter repeats an event
	// on a pod only after this time. Source: sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling,
	// PodFailedToScheduleEvent.
	Silence = 5 * time.Minute
)

// Answered returns the UID of the pod that Karpenter looked at, and when, by the event. If the event does not show that
// Karpenter looked at a pod, the UID is empty.
func Answered(e *corev1.Event) (pod types.UID, at time.Time) {
	if e.InvolvedObject.Kind != "Pod" || e.Source.Component != Component && e.ReportingController != Component || e.Reason != "Nominated" && e.Reason != "FailedScheduling" {
		return "", time.Time{}
	}
	for _, t := range []time.Time{e.CreationTimestamp.Time, e.EventTime.Time, e.LastTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	return e.InvolvedObject.UID, at
}
