// Package gate decides whether the gate of a burst pool is open for a pod. A decision has no side effects, and all
// inputs, including the time, are arguments. The plugin, the controller and the tools share this code and its reasons.
package gate

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/alike"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// staleSnapshotLimit is a maximum age of the view. A younger view keeps the gate closed if it does not match the
// scheduling cycle's snapshot (behind).
const staleSnapshotLimit = 30 * time.Second

// Rule is the configuration of all gates. It is immutable.
type Rule struct {
	Pools pool.List
	// UnknownGrace is how long an Unknown node group keeps the gate closed.
	UnknownGrace time.Duration
	// StaleAfter is the age at which an autoscaler's status becomes Unknown.
	StaleAfter time.Duration
	// NewPodDelay is the minimum age of the pods that the autoscaler considers. A pod's DelayAnnotation can raise it.
	NewPodDelay time.Duration
	// HoldLimit is the longest time that a pod is held. The time starts at NoRoomSince. 0 means no limit.
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
		Pools: pools, UnknownGrace: c.UnknownGrace.Duration, StaleAfter: c.StaleAfter.Duration, NewPodDelay: c.NewPodDelay.Duration,
		HoldLimit: c.HoldLimit.Duration, Observe: args.Mode == configv1.ModeObserve,
	}
}

// UnschedulableSince returns when the pod's condition PodScheduled became False with the reason Unschedulable. It
// returns zero for other pods, including pods with scheduling gates.
func UnschedulableSince(pod *corev1.Pod) time.Time {
	if c := ScheduledCondition(pod); c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// NoRoomSince returns since when the pod has lacked resources, by its condition alone; zero if unknown. A member of a
// gang may be unschedulable only because the gang is incomplete.
func NoRoomSince(pod *corev1.Pod) time.Time {
	if alike.InGang(pod) {
		return time.Time{}
	}
	return UnschedulableSince(pod)
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
	// NoRoomSince is when the pod became unschedulable because no node fits it; zero if unknown. The time does not
	// start while the pod is unschedulable for another cause, such as an incomplete gang or a missing PVC.
	NoRoomSince time.Time
	// IgnoredUntil is when autoscalers last ignored the pod, for example because it was nominated to a node; zero if
	// they never ignored the pod.
	IgnoredUntil time.Time
	// Inherited is for how long a deleted pod had waited whose waiting the pod continues.
	Inherited time.Duration
	// Overflow is set if Rule.Overflow found, for the view of the decision, that upcoming nodes have no room for the pod.
	Overflow bool
	// Declined returns when the node group with the DeclineKey last declined a pod with the request's AutoscalerKey, or
	// when such a pod last ran out of credit for the group with the creditKey; zero if that has not happened. nil means
	// that neither has happened for any group.
	Declined func(key string) time.Time
	// RefusedAt returns when Karpenter wrote that it cannot place the pod; zero if it did not. The gate calls RefusedAt
	// only for node groups with ByEvent. nil means that the gate does not read events.
	RefusedAt func(pod *corev1.Pod) time.Time
	// NoScaleUp returns the cluster autoscaler's last event NotTriggerScaleUp on the pod. The gate calls NoScaleUp only
	// for node groups that can grow. nil means that the gate does not read events.
	NoScaleUp func(pod *corev1.Pod) nodegroups.NoScaleUp
	// Gang is the name of the pod's gang, a group of pods that run all or not at all. It is empty if the pod is in none.
	Gang string
	// AzureFiles is the result of Volumes.AzureFiles for the pod.
	AzureFiles bool
	// NotSelected reports, by the pool's index, whether a burst pool's namespaceSelector excludes the pod's namespace.
	// nil means that the gate does not check namespaces.
	NotSelected []bool
	// LeftOut reports, by the pool's index, whether the pod leaves out the pool because its own binding was denied. nil means
	// that it leaves out none. The denials of other pods open no gate.
	LeftOut []bool
	// Tenant has the pod's protections, and whether the pod may ask for burst nodes. nil means that `tenants` is false.
	Tenant *Tenant
	// Snapshot counts the nodes of each regular pool in the scheduling cycle's snapshot, by the pool's index. The
	// snapshot may be older than the view. nil means that the gate does not check the snapshot.
	Snapshot []Nodes
	// Wait keeps the gate closed until other pods have terminated, such as pods that the pod's rollout replaces.
	Wait Wait
	// Burst is the usage of each burst pool's budget, by the pool's index. nil means that the gate does not check
	// budgets.
	Burst []aci.Use
	// Share returns the usage of the pod's namespace in the burst pool with index i. The gate calls Share only if the
	// pool has a budget for each namespace. nil means that the gate does not check these budgets.
	Share func(i int) aci.Use
	// Tests returns the pods that test the provider of the burst pool with index i for the scope, including assumed
	// pods. The gate calls Tests only if the provider, or a Closing, is half-open. If Tests is nil, the gate uses those
	// in the view.
	Tests func(i int, scope breaker.Scope) breaker.Tests
	// Creates returns the last creates in the burst pool with index i, including assumed pods. The gate calls Creates only
	// if the pool has rates. If Creates is nil, the gate uses those in the view.
	Creates func(i int) breaker.Creates
	// Pacing returns the pacing of the pod's owner in the burst pool with index i. The gate calls Pacing only if the
	// owner counts failures. If Pacing is nil, the gate uses the pacing in the view.
	Pacing func(i int) *breaker.Pacing
}

// PlainPod returns a new pod without constraints, requests or tolerations. Tools show whether a burst pool's gate is
// open for such a pod.
func PlainPod() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plain"}}}}
}

// AutoscalerKey returns the alike.Autoscaler key of the request's pod. With tenants, what one namespace's pods teach
// holds for that namespace only.
func (req *Request) AutoscalerKey() string {
	var tenant any
	if req.Tenant != nil {
		tenant = []any{*req.Tenant, req.Pod.Namespace} // a nested pointer would be printed as an address
	}
	return alike.Autoscaler(req.Pod, req.AzureFiles, req.NotSelected, tenant)
}

// Wait keeps the gate closed for a pod that may fit into an earlier pool after other pods have terminated.
type Wait struct {
	// Reason is ReasonRolloutTerminating, ReasonVictimsTerminating, ReasonMakesRoom or ReasonReplicaSetUnknown.
	Reason nodegroups.Reason
	// Until is when the wait ends; zero if the pod does not wait.
	Until time.Time
	// ReplicaSet is the key (refusal.KeyOf) of the pod's ReplicaSet if the pod waits for its rollout; empty otherwise.
	// The gate does not read it: it is for the pods that wait for the same rollout.
	ReplicaSet types.UID
}

// Nodes has the numbers of all nodes, of starting nodes, of nodes being removed, and of nodes with a lasting taint.
type Nodes struct{ All, Starting, Leaving, Tainted int }

// Decision has the verdicts of all pools for one pod.
type Decision struct {
	// Regular has a verdict for each regular pool, by the pool's index.
	Regular []Verdict
	// Burst has a verdict for each burst pool, by the pool's index. The entries of regular pools are empty.
	Burst []Verdict
}

// Verdict is the part of a decision for one pool, or for one node group of a regular pool.
type Verdict struct {
	// Open means that the gate of a burst pool is open. For a regular pool or a node group, Open means that the pool or
	// group does not keep gates closed, for example because it is full.
	Open   bool
	Reason nodegroups.Reason
	// Until is when a closed gate may open by the passing of time alone; zero if only an event can open the gate.
	Until time.Time
	// Closes is the reason that a closed gate gets from this regular pool or node group; nil if the pool or group does
	// not keep gates closed.
	Closes *nodegroups.Reason
	// Declined has, by DeclineKey, when node groups of a regular pool declined this pod and, by creditKey, when the pod ran
	// out of credit for node groups. It leaves out groups whose verdict is open only because of another pod
	// (Request.Declined).
	Declined map[string]time.Time
	// Trial is not nil if the gate is open for one more pod of the scope only, to test whether the pool's provider accepts
	// such pods again.
	Trial *breaker.Scope
	// Quota is the number of pods of the pod's owner for which the gate is open; 0 means no limit.
	Quota int
	// Limited is set if the gate is open and the burst pool has a budget.
	Limited bool
	// Observed is set if only "mode: Observe" opened the gate. Reason then says why "mode: Enforce" would have closed
	// it.
	Observed bool
}

// closed returns a closed verdict with the reason and the detail.
func closed(reason nodegroups.Reason, detail string) Verdict {
	return Verdict{Reason: reason.With("%s", detail)}
}

// Holds reports whether the regular pool or the node group keeps gates closed.
func (v *Verdict) Holds() bool { return !v.Open }

// Passes reports whether the gate is closed for a reason of the kind Momentary.
func (v *Verdict) Passes() bool { return !v.Open && Lookup(v.Reason.Code).Kind == Momentary }

// behind reports whether the snapshot or the view is out of date for the pool with index i. In that case, the snapshot
// has fewer nodes than the view, or more nodes that are starting, being removed or tainted.
func (req *Request) behind(i int, p *nodegroups.Pool) bool {
	if req.Snapshot == nil {
		return false
	}
	s := &req.Snapshot[i]
	return s.All < p.Nodes || s.Starting > p.Starting || s.Leaving > p.Leaving || s.Tainted > p.Tainted
}

// leavesOut reports whether the pod leaves out the pool with index i.
func (req *Request) leavesOut(i int) bool { return req.LeftOut != nil && req.LeftOut[i] }

// Until returns the earliest time at which a closed gate may open by the passing of time alone; zero if there is none.
func (d *Decision) Until() time.Time {
	var until time.Time
	for i := range d.Burst {
		until = nodegroups.Earliest(until, d.Burst[i].Until)
	}
	return until
}

// Opens reports whether the gate of any burst pool is open for the pod. A gate that is open only because of mode:
// Observe does not count.
func (d *Decision) Opens() bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return v.Open && !v.Observed })
}

// Closes reports whether the gate of any burst pool is closed for the reason.
func (d *Decision) Closes(reason nodegroups.Reason) bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return !v.Open && v.Reason.Code == reason.Code })
}
