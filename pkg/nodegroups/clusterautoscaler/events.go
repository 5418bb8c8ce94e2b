package clusterautoscaler

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// Component is the source of the cluster autoscaler's events. Source: cluster-autoscaler/utils/kubernetes/factory.go.
const Component = "cluster-autoscaler"

// maxDegradation is how long a degradation counts if the autoscaler does not report it again.
const maxDegradation = 15 * time.Minute

// Event is what the scheduler needs of an event of the cluster autoscaler. At most one field is set.
type Event struct {
	// NoScaleUp is set for the event NotTriggerScaleUp on a pod.
	NoScaleUp nodegroups.NoScaleUp
	// Degraded and Recovered are when the autoscaler began and ceased to skip pods in its loops. It writes these events
	// on the ConfigMap with its status. Source: core/podlistprocessor/filter_out_schedulable.go of 1.37.
	Degraded, Recovered time.Time
}

// EventOf returns what the scheduler needs of the event, which it received at the time seen.
func EventOf(e *corev1.Event, seen time.Time) (event Event) {
	switch at := e.LastTimestamp.Time; {
	case e.Source.Component != Component:
	case e.Reason == "NotTriggerScaleUp":
		groups, atMax := count(e.Message)
		event.NoScaleUp = nodegroups.NoScaleUp{At: at, Seen: seen, Groups: groups, AtMax: atMax}
	case e.Reason == "GracefulDegradationStarted":
		event.Degraded = at
	case e.Reason == "GracefulDegradationStopped":
		event.Recovered = at
	}
	return event
}

// LastNoScaleUp returns the NoScaleUp that the scheduler received last; the zero value if there is none.
func LastNoScaleUp(events []Event) (last nodegroups.NoScaleUp) {
	for _, e := range events {
		if e.NoScaleUp.Seen.After(last.Seen) {
			last = e.NoScaleUp
		}
	}
	return last
}

// DegradedSince returns when the autoscaler last began to skip pods; zero if it never did, or has recovered since.
func DegradedSince(events []Event) (degraded time.Time) {
	var recovered time.Time
	for _, e := range events {
		degraded, recovered = nodegroups.Latest(degraded, e.Degraded), nodegroups.Latest(recovered, e.Recovered)
	}
	if !degraded.After(recovered) {
		return time.Time{}
	}
	return degraded
}

// atMaxSize is the reason of a node group at its maximum size. Source: core/scaleup/orchestrator/skippedreasons.go.
const atMaxSize = "max node group size reached"

// clause matches the number of node groups and their reason, if the reason lasts. The reasons are atMaxSize and those
// reasons of kube-scheduler's filters that depend only on the pod and on the group's nodes. (Until 1.34, the reason of
// TaintToleration names the taint.) Reasons that depend on other pods or on volumes may soon no longer apply.
var clause = regexp.MustCompile(`^([1-9][0-9]{0,4}) (` + atMaxSize + `|(Insufficient) \S+|node\(s\) had untolerated taint(?:\(s\)| \{[^{}]*\})|node\(s\) didn't match Pod's node affinity/selector)$`)

// count returns how many node groups the message of an event NotTriggerScaleUp counts, and how many of them are at their
// maximum size. It returns 0 if the message has an unknown reason or does not determine the number of groups. Source:
// processors/status/eventing_scale_up_processor.go.
func count(message string) (groups, atMax int) {
	list, found := strings.CutPrefix(message, "pod didn't trigger scale-up: ")
	insufficient := 0
	for _, text := range strings.Split(list, ", ") {
		m := clause.FindStringSubmatch(text)
		if m == nil || !found {
			return 0, 0
		}
		n, _ := strconv.Atoi(m[1]) // does not fail
		groups += n
		if m[2] == atMaxSize {
			atMax += n
		}
		if m[3] != "" {
			insufficient++
		}
	}
	if insufficient > 1 { // a node that lacks several resources counts for each of them, and other filters give one reason
		return 0, 0
	}
	return groups, atMax
}
