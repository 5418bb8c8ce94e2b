// Package gate holds the rule that opens a burst pool for a pod. It is pure: all inputs are arguments, the clock
// included. The plugin, the controller and the tools use it and its sentences.
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

// staleSnapshotLimit bounds how long a snapshot may lack the nodes of a view.
const staleSnapshotLimit = 30 * time.Second

// Rule has the configuration of the gate. It is immutable.
type Rule struct {
	Pools pool.List
	// UnknownGrace is how long an Unknown node group keeps the gate closed.
	UnknownGrace time.Duration
	// NewPodDelay is how old a pod must be before the autoscaler considers it; DelayAnnotation on the pod can raise it.
	NewPodDelay time.Duration
	// HoldLimit is the longest time for which a pod is held, from when it became unschedulable or a node came that it
	// might use, and at most twice as long in all; 0 is no limit.
	HoldLimit time.Duration
	// Override is an operator's override of all gates.
	Override Override
	// Observe opens all gates; the verdicts show which would be closed.
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

// UnschedulableSince returns when the pod's condition became Unschedulable; zero if it is not. A pod with scheduling
// gates is not unschedulable yet.
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
	// UnschedulableSince is when the pod became unschedulable; zero if unknown.
	UnschedulableSince time.Time
	// NoRoomSince is when it began to lack resources, rather than a gang or a PVC; zero if unknown.
	NoRoomSince time.Time
	// IgnoredUntil is when autoscalers last had a reason to ignore the pod, as while it was nominated; zero if never.
	IgnoredUntil time.Time
	// Declined returns the node groups that declined pods with the same AutoscalerKey, and when, by DeclineKey. It is
	// called only if nothing but a group that can grow would hold the pod; nil: none.
	Declined func() map[string]time.Time
	// AzureFiles is set if all persistent volumes of the pod are Azure Files.
	AzureFiles bool
	// NotSelected is, by the pool's index, whether a burst pool's namespaceSelector excludes the pod's namespace; nil:
	// not checked.
	NotSelected []bool
	// Snapshot counts the nodes of each regular pool in the scheduling cycle's snapshot, by the pool's index. The
	// snapshot may be older than the view; nil: not checked.
	Snapshot []Nodes
	// Wait is the pod's wait, if it is a new one of a rollout.
	Wait Wait
	// Burst is the usage of each burst pool, by the pool's index. Without it, budgets are not checked.
	Burst []aci.Use
	// Starting returns how many pods on the nodes of the burst pool with index i may still start, assumed pods
	// included. It is called only for a pool that is not Open; nil: the view's number.
	Starting func(i int) int
	// Pacing returns the pacing of the pod's owner in the burst pool with index i. It is asked only if the owner counts
	// failures; nil: the view's.
	Pacing func(i int) *breaker.Pacing
}

// PlainPod returns a new pod without constraints, requests and tolerations. Tools show whether a burst pool's gate is
// open for such a pod.
func PlainPod() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plain"}}}}
}

// AutoscalerKey returns alike.Autoscaler of the pod that asks.
func (req *Request) AutoscalerKey() string {
	return alike.Autoscaler(req.Pod, req.AzureFiles, req.NotSelected)
}

// Wait keeps the gate closed for one pod that will, or may, find a place in an earlier pool once other pods have ended.
type Wait struct {
	// Reason is ReasonRolloutTerminating or ReasonVictimsTerminating, with the place, or ReasonReplicaSetUnknown.
	Reason nodegroups.Reason
	// Until is when the wait is over; zero if the pod waits for nothing.
	Until time.Time
}

// Nodes counts nodes: all of them, those that are starting, those that are being taken away, and those with a lasting
// taint.
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
	// Open: the gate of a burst pool is open. A regular pool or node group does not hold the gate, because it is full
	// for example.
	Open   bool
	Reason nodegroups.Reason
	// Until is when a closed one may open without any event; zero if it does not.
	Until time.Time
	// Closes is set if a regular pool or group holds the gate: the reason that the closed gate then gives.
	Closes *nodegroups.Reason
	// Declined lists the node groups of a regular pool that declined the pod by its own clock.
	Declined []string
	// Trial: the gate is open for one pod only, to see whether the pool's provider takes pods again.
	Trial bool
	// Quota is the number of the owner's pods that the gate is open for; 0: all.
	Quota int
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

// behind reports whether the snapshot and the view of the pool with index i differ in age: the snapshot lacks nodes of
// the view, or has fewer ready ones, or it has nodes that are being removed and the view does not know that.
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
