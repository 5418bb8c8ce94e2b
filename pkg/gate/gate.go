// Package gate holds the rule that opens a burst pool for a pod. It is pure: everything it looks at is handed to it, the
// clock included. The plugin, the controller and the tools all ask it and say its sentences.
package gate

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/alike"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// unseenLimit is for how long after a view was made the nodes in it are waited for.
const unseenLimit = 30 * time.Second

// Rule is what the gate goes by. It must not be changed.
type Rule struct {
	Pools pool.List
	// UnknownGrace is how long an Unknown node group keeps the gate closed.
	UnknownGrace time.Duration
	// NewPodDelay is how old a pod must be for the autoscaler to look at it; DelayAnnotation on the pod says more.
	NewPodDelay time.Duration
	// HoldLimit is the longest time for which a pod is held, from when it became unschedulable or a node came that it might use, and at most
	// twice as long in all; 0 is no limit.
	HoldLimit time.Duration
	// Override is what an operator says of all gates.
	Override Override
	// Observe opens all gates, and has verdicts say which would be closed.
	Observe bool
}

// NewRule returns the rule that the (valid and defaulted) configuration states for its pools.
func NewRule(args *configv1.PoolPriorityArgs, pools pool.List) Rule {
	c := &args.Capacity
	return Rule{
		Pools: pools, UnknownGrace: c.UnknownGrace.Duration, NewPodDelay: c.NewPodDelay.Duration,
		HoldLimit: c.HoldLimit.Duration, Observe: args.Mode == configv1.ModeObserve,
	}
}

// UnschedulableSince is since when the API has said that the pod is unschedulable; zero if it does not. A pod that waits for scheduling gates is
// not unschedulable yet.
func UnschedulableSince(pod *corev1.Pod) time.Time {
	if c := ScheduledCondition(pod); c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// ScheduledCondition returns the pod's condition PodScheduled, or nil.
func ScheduledCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c
		}
	}
	return nil
}

// Request is the pod that asks.
type Request struct {
	Pod *corev1.Pod
	// UnschedulableSince is since when the pod has been known to be unschedulable; zero if it is not known to be.
	UnschedulableSince time.Time
	// NoRoomSince is since when it has been so for want of room, and not for a gang or a missing claim; zero if it is not known to be.
	NoRoomSince time.Time
	// IgnoredUntil is when autoscalers last had a reason to ignore the pod, as while it was nominated; zero if never.
	IgnoredUntil time.Time
	// Declined returns the node groups that have declined pods of the pod's kind, and when, by DeclineKey. It is asked only where a group that
	// can grow is all that would hold the pod; nil: none is known to have.
	Declined func() map[string]time.Time
	// AzureFiles says that all persistent volumes that the pod claims are Azure Files.
	AzureFiles bool
	// NotSelected says of each pool, by its index, that it is a burst pool which is not for the pods of the pod's namespace. Without it, that is not
	// looked at.
	NotSelected []bool
	// Snapshot is the nodes of each regular pool that the pod can be put on now, by the pool's index: those of the scheduling
	// cycle's snapshot, which may be behind the view. Without it, that is not looked at.
	Snapshot []Nodes
	// Wait is what the pod waits for, if it is a new one of a rollout.
	Wait Wait
	// Burst is what is on the nodes of each burst pool, by the pool's index. Without it, budgets are not looked at.
	Burst []aci.Use
	// Starting returns how many pods on the nodes of the burst pool with index i may still start, those among them that were placed a moment ago.
	// It is asked only of a pool that is not Open; nil: as many as the view says.
	Starting func(i int) int
	// Pacing returns the pacing of the pod's owner in the burst pool with index i. It is asked only if the owner counts failures; nil: the view's.
	Pacing func(i int) *breaker.Pacing
}

// PlainPod is a pod without constraints, requests and tolerations that has just been made. Whether a gate is open for it is what is told of a burst
// pool where no pod is asked about.
func PlainPod() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plain"}}}}
}

// AutoscalerKey returns alike.Autoscaler of the pod that asks.
func (req *Request) AutoscalerKey() string {
	return alike.Autoscaler(req.Pod, req.AzureFiles, req.NotSelected)
}

// Wait keeps the gate closed for one pod that will, or may, find a place in an earlier pool once other pods have ended.
type Wait struct {
	// Reason is ReasonRoom or ReasonVictims, with the place, or ReasonEarly.
	Reason nodegroups.Reason
	// Until is when the wait is over; zero if the pod waits for nothing.
	Until time.Time
}

// Nodes counts nodes: all of them, those that are starting, those that are being taken away, and those with a lasting taint.
type Nodes struct{ All, Starting, Leaving, Tainted int }

// Decision is the gate's answer for one pod.
type Decision struct {
	// Regular has a verdict for each regular pool, by the pool's index.
	Regular []Verdict
	// Burst has a verdict for each burst pool, by the pool's index; those of regular pools are empty.
	Burst []Verdict
}

// Verdict is the answer of a pool, or of a node group of a regular pool.
type Verdict struct {
	// Open: the gate of a burst pool is open. A regular pool or node group does not hold the gate, because it is full for example.
	Open   bool
	Reason nodegroups.Reason
	// Until is when a closed one may open without any event; zero if it does not.
	Until time.Time
	// closes is set if a regular pool or group holds the gate: the reason that the closed gate then gives.
	closes *nodegroups.Reason
	// Declined lists the node groups of a regular pool that declined the pod by its own clock.
	Declined []string
	// Probe: the gate is open for one pod only, to see whether the pool's provider takes pods again.
	Probe bool
	// Turn is the number of the owner's pods that the gate is open for; 0: all.
	Turn int
	// Observed: the gate would be closed, for the Reason, if it were not only observed.
	Observed bool
}

// closed is the verdict that a gate is closed for the reason with the detail.
func closed(reason nodegroups.Reason, detail string) Verdict {
	return Verdict{Reason: reason.With("%s", detail)}
}

// Holds reports whether the regular pool, or the group of one, keeps gates closed.
func (v *Verdict) Holds() bool { return !v.Open }

// Passes reports whether the gate is closed for a moment only.
func (v *Verdict) Passes() bool { return !v.Open && Lookup(v.Reason.Code).Kind == Momentary }

// behind reports whether the snapshot and what is known of the pool with index i are not of the same time: the snapshot lacks nodes that
// are known to be there, or to be ready, or it knows of nodes that are being taken away where the pool has not been judged with that.
func (req *Request) behind(i int, p *nodegroups.Pool) bool {
	if req.Snapshot == nil {
		return false
	}
	s := &req.Snapshot[i]
	return s.All < p.Nodes || s.Starting > p.Starting || s.Leaving > p.Leaving || s.Tainted > p.Tainted
}

// Until is the earliest time at which a closed gate may open without any event; zero if none does.
func (d *Decision) Until() time.Time {
	var until time.Time
	for i := range d.Burst {
		until = nodegroups.Earliest(until, d.Burst[i].Until)
	}
	return until
}

// Opens reports whether the gate of a burst pool is open for the pod, and not only because it is observed.
func (d *Decision) Opens() bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return v.Open && !v.Observed })
}

// Closes reports whether a gate is closed for the reason.
func (d *Decision) Closes(reason nodegroups.Reason) bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return !v.Open && v.Reason.Code == reason.Code })
}
