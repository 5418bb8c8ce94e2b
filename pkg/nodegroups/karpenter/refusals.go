package karpenter

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const (
	// Component is the source of Karpenter's events. Source: sigs.k8s.io/karpenter/pkg/operator, AppName.
	Component = "karpenter"
	// MaxWait is how long a pod waits for a NodePool, unless an event of Karpenter says that it cannot place the pod.
	// Karpenter repeats such an event only after this time. Source: sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling,
	// PodFailedToScheduleEvent.
	MaxWait = 5 * time.Minute
)

// Simulation is the result of Karpenter's simulation for a pod, as an event shows it.
type Simulation struct {
	// Pod is the UID of the pod; empty if the event shows no result.
	Pod types.UID
	At  time.Time
	// Failed is set if Karpenter cannot place the pod. Otherwise, Karpenter has a node for the pod.
	Failed bool
}

// SimulationOf returns the result that the event shows.
func SimulationOf(e *corev1.Event) Simulation {
	if e.InvolvedObject.Kind != "Pod" || e.Source.Component != Component && e.ReportingController != Component || e.Reason != "Nominated" && e.Reason != "FailedScheduling" {
		return Simulation{}
	}
	at := nodegroups.Latest(e.CreationTimestamp.Time, e.EventTime.Time, e.LastTimestamp.Time)
	return Simulation{Pod: e.InvolvedObject.UID, At: at, Failed: e.Reason == "FailedScheduling"}
}

// RefusedAt returns when Karpenter found that it cannot place the pod; zero if it did not, or if it found a node for
// the pod later.
func RefusedAt(pod types.UID, results []Simulation) time.Time {
	var last Simulation
	for _, s := range results {
		if s.Pod == pod && s.At.After(last.At) {
			last = s
		}
	}
	if !last.Failed {
		return time.Time{}
	}
	return last.At
}
