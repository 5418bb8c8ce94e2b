// Package gate holds the rule that opens a burst pool for a pod. The rule is pure: all inputs, including the time, are
// arguments. The plugin, the controller and the tools use the rule, and the sentences of its reasons.
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

// staleSnapshotLimit bounds how long the gate stays closed because the cycle's snapshot does not match the view
// (behind). The time counts from when the view was built.
const staleSnapshotLimit = 30 * time.Second

// Rule has the configuration of the gate. It is immutable.
type Rule struct {
	Pools pool.List
	// UnknownGrace is how long an Unknown node group keeps the gate closed.
	UnknownGrace time.Duration
	// NewPodDelay is the age from which the autoscaler considers a pod. DelayAnnotation on the pod can raise it.
	NewPodDelay time.Duration
	// HoldLimit bounds how long a pod is held. The time counts from NoRoomSince, and again from when a node that fits
	// the pod became usable. In all, a pod is held for at most twice HoldLimit. 0 means no limit.
	HoldLimit time.Duration
	// Override is an operator's override of all gates.
	Override Override
	// Observe opens all gates. The verdicts show which gates would be closed.
	Observe bool
}

// NewRule returns the rule for the pools of the configuration. The configuration must be valid and defaulted.
func NewRule(args *configv1.PoolPriorityArgs, pools pool.List) Rule {
	c := &args.Capacity
	return Rule{
		Pools: pools, UnknownGrace: c.UnknownGrace.Duration, NewPodDelay: c.NewPodDelay.Duration,
		HoldLimit: c.HoldLimit.Duration, Observe: args.Mode == configv1.ModeObserve,
	}
}

// UnschedulableSince returns when the pod's condition became Unschedulable; zero if the pod is not unschedulable. A pod
// with scheduling gates is not unschedulable yet.
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

// Request describes the pod for which the gate decides.
type Request struct {
	Pod *corev1.Pod
	// UnschedulableSince is when the pod became unschedulable; zero if unknown.
	UnschedulableSince time.Time
	// NoRoomSince is when the pod began to lack resources, rather than other pods of its gang or a PVC; zero if
	// unknown.
	NoRoomSince time.Time
	// IgnoredUntil is when autoscalers last had a reason to ignore the pod, such as its nomination to a node; zero if
	// they never had one.
	IgnoredUntil time.Time
	// Declined returns a map from DeclineKey to the time at which that node group declined a pod with the same
	// AutoscalerKey. The gate calls it only while it evaluates a node group that can grow. If Declined is nil, no group
	// has declined.
	Declined func() map[string]time.Time
	// AzureFiles is set if all persistent volumes of the pod are Azure Files.
	AzureFiles bool
	// NotSelected reports, by the pool's index, whether a burst pool's namespaceSelector excludes the pod's namespace.
	// nil means that namespaces are not checked.
	NotSelected []bool
	// Snapshot counts the nodes of each regular pool in the scheduling cycle's snapshot, by the pool's index. The
	// snapshot may be older than the view. nil means that the snapshot is not checked.
	Snapshot []Nodes
	// Wait keeps the gate closed for the pod until other pods have ended, such as those that its rollout replaces.
	Wait Wait
	// Burst is the usage of each burst pool, by the pool's index. nil means that budgets are not checked.
	Burst []aci.Use
	// Starting returns the number of pods on the nodes of the burst pool with index i that have not started yet and are
	// still expected to, including assumed pods. It is called only for a pool whose provider is not Open. If it is nil,
	// the view's number is used.
	Starting func(i int) int
	// Pacing returns the pacing of the pod's owner in the burst pool with index i. It is called only if the owner
	// counts failures. If it is nil, the view's pacing is used.
	Pacing func(i int) *breaker.Pacing
}

// PlainPod returns a new pod without constraints, requests or tolerations. Tools show whether a burst pool's gate is
// open for such a pod.
func PlainPod() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plain"}}}}
}

// AutoscalerKey returns the alike.Autoscaler key of the request's pod.
func (req *Request) AutoscalerKey() string {
	return alike.Autoscaler(req.Pod, req.AzureFiles, req.NotSelected)
}

// Wait keeps the gate closed for a pod that fits, or may fit, into an earlier pool when other pods have ended.
type Wait struct {
	// Reason is ReasonRolloutTerminating or ReasonVictimsTerminating, with the node as its detail, or
	// ReasonReplicaSetUnknown.
	Reason nodegroups.Reason
	// Until is when the wait ends; zero if the pod does not wait.
	Until time.Time
}

// Nodes counts all nodes, the nodes that are starting, the nodes that are being removed, and the nodes with a lasting
// taint.
type Nodes struct{ All, Starting, Leaving, Tainted int }

// Decision is the gate's answer for one pod.
type Decision struct {
	// Regular has a verdict for each regular pool, by the pool's index.
	Regular []Verdict
	// Burst has a verdict for each burst pool, by the pool's index. The entries of regular pools are empty.
	Burst []Verdict
}

// Verdict is the answer for a pool, or for a node group of a regular pool.
type Verdict struct {
	// Open means that the gate of a burst pool is open. For a regular pool or a node group it means that the pool or
	// group does not hold the gate, for example because it is full.
	Open   bool
	Reason nodegroups.Reason
	// Until is when a closed gate may open without any event; zero if it cannot.
	Until time.Time
	// Closes is the reason of the closed gate if this regular pool or node group holds it; nil if it does not.
	Closes *nodegroups.Reason
	// Declined lists the node groups of a regular pool that declined this pod. It leaves out groups that are open only
	// because they declined another pod (Request.Declined).
	Declined []string
	// Trial is set if the gate is open for one pod only, to test whether the pool's provider accepts pods again.
	Trial bool
	// Quota is the number of the owner's pods for which the gate is open; 0 means all.
	Quota int
	// Limited is set if the gate is open and the burst pool has a budget.
	Limited bool
	// Observed is set if only mode: Observe opened the gate. Reason is why the gate would be closed.
	Observed bool
}

// closed returns the verdict of a gate that is closed for the reason with the detail.
func closed(reason nodegroups.Reason, detail string) Verdict {
	return Verdict{Reason: reason.With("%s", detail)}
}

// Holds reports whether the regular pool or the node group keeps gates closed.
func (v *Verdict) Holds() bool { return !v.Open }

// Passes reports whether the gate is closed for a moment only.
func (v *Verdict) Passes() bool { return !v.Open && Lookup(v.Reason.Code).Kind == Momentary }

// behind reports whether the snapshot of the pool with index i does not match the view, because one of the two is
// older. The snapshot then has fewer nodes than the view, or more nodes that are starting, being removed or tainted.
func (req *Request) behind(i int, p *nodegroups.Pool) bool {
	if req.Snapshot == nil {
		return false
	}
	s := &req.Snapshot[i]
	return s.All < p.Nodes || s.Starting > p.Starting || s.Leaving > p.Leaving || s.Tainted > p.Tainted
}

// Until returns the earliest time at which a closed gate may open without any event; zero if there is none.
func (d *Decision) Until() time.Time {
	var until time.Time
	for i := range d.Burst {
		until = nodegroups.Earliest(until, d.Burst[i].Until)
	}
	return until
}

// Opens reports whether the gate of a burst pool is open for the pod, and not only because of mode: Observe.
func (d *Decision) Opens() bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return v.Open && !v.Observed })
}

// Closes reports whether a gate is closed for the reason.
func (d *Decision) Closes(reason nodegroups.Reason) bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return !v.Open && v.Reason.Code == reason.Code })
}
