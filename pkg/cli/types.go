package cli

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lint"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// APIVersion is the apiVersion of the output of -o json and -o yaml. In this output, times have the format of RFC 3339,
// and quantities are strings.
const APIVersion = published.ViewVersion

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: APIVersion, Kind: kind}
}

// PoolStatusList is the output of the command `status`.
type PoolStatusList struct {
	metav1.TypeMeta `json:",inline"`
	// Written is when the leader last published its state, by the leader's clock.
	Written time.Time `json:"written,omitzero"`
	// Leader and Version are the name and the version of the leading scheduler. SchedulerName is the schedulerName of
	// the pods that this scheduler schedules.
	Leader        string `json:"leader,omitempty"`
	Version       string `json:"version,omitempty"`
	SchedulerName string `json:"schedulerName,omitempty"`
	// Mode and Order are from the configuration.
	Mode  string `json:"mode,omitempty"`
	Order string `json:"order,omitempty"`
	// Items are the pools, the most preferred first.
	Items []PoolStatus `json:"items"`
	// Held counts the held pods.
	Held published.Held `json:"held"`
	// UnlistedNodes is the number of nodes in no pool.
	UnlistedNodes int `json:"unlistedNodes,omitempty"`
	// Problems are mistakes that the scheduler found and that the user can fix. Notes are warnings about this output.
	Problems []string `json:"problems,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

// PoolStatus is the status of a pool.
type PoolStatus struct {
	Name string `json:"name"`
	// Rank is the pool's place in the list of pools. Rank 0 is the most preferred pool.
	Rank  int  `json:"rank"`
	Burst bool `json:"burst,omitempty"`
	// State of a regular pool is CanGrow, Growing, Full or Unknown. State of a burst pool without a usable node is
	// Down. If the pool's provider refuses pods, State is Refusing or HalfOpen. Otherwise State is the gate's decision
	// for gate.PlainPod: Open, Closed, or Spent if the pool's budget is used up.
	State  string            `json:"state"`
	Reason nodegroups.Reason `json:"reason,omitzero"`
	// HeldBy are the regular pools that keep the gate of this burst pool closed.
	HeldBy []PoolState `json:"heldBy,omitempty"`
	// Since is when the pool entered the state; unset if unknown. Until is when the state may change without an event.
	Since time.Time  `json:"since,omitzero"`
	Until time.Time  `json:"until,omitzero"`
	Nodes NodeCounts `json:"nodes"`
	// Pods is the number of pods on the pool's nodes; unset if unknown. Pods that have succeeded or failed are not
	// counted.
	Pods *int `json:"pods,omitempty"`
	// Requested is the sum of the resources that the pool's pods request. In a burst pool, it is the sum of the
	// resources that the provider bills.
	Requested   corev1.ResourceList `json:"requested,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Limits is the budget of a burst pool.
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// Taint is a taint of a burst pool's nodes that the pool does not tolerate. Only pods that tolerate it can run there.
	Taint string `json:"taint,omitempty"`
	// Finished is the number of pods on a burst pool's nodes that have ended and were not deleted.
	Finished int `json:"finished,omitempty"`
	// Source is the source of a regular pool's state: ClusterAutoscaler, Karpenter, Static or Fixed.
	Source string        `json:"source,omitempty"`
	Groups []GroupStatus `json:"groups,omitempty"`
}

// PoolState is the name of a pool with the pool's state.
type PoolState struct {
	Pool  string `json:"pool"`
	State string `json:"state"`
}

// NodeCounts counts the nodes of a pool.
type NodeCounts struct {
	Total int `json:"total"`
	// Ready is the number of nodes that are ready and not cordoned; unset if unknown.
	Ready *int `json:"ready,omitempty"`
	// OnTheirWay counts the nodes that the autoscaler has ordered but that have no Node object yet. It also counts new
	// nodes that are not usable yet.
	OnTheirWay int `json:"onTheirWay,omitempty"`
	Leaving    int `json:"leaving,omitempty"`
	// Max is the maximum number of nodes; unset if the pool has no maximum, or if the maximum is unknown.
	Max *int `json:"max,omitempty"`
}

// GroupStatus is the status of a node group.
type GroupStatus struct {
	// Name is the name of the node group. For the nodes that belong to no node group, Name is empty.
	Name   string            `json:"name,omitempty"`
	State  string            `json:"state"`
	Reason nodegroups.Reason `json:"reason"`
	Since  time.Time         `json:"since,omitzero"`
	Until  time.Time         `json:"until,omitzero"`
	Nodes  int               `json:"nodes"`
	Max    *int              `json:"max,omitempty"`
}

// Situation is the state of the explained pod. For a workload, it is Template.
type Situation string

const (
	// Waits is a pending pod that the scheduler has tried to schedule.
	Waits Situation = "Waits"
	// NotTried is a pending pod that the scheduler has not tried to schedule yet.
	NotTried Situation = "NotTried"
	// SchedulingGated is a pending pod with scheduling gates.
	SchedulingGated Situation = "SchedulingGated"
	// Nominated is a pending pod with a nominatedNodeName. The pod waits until the pods that it preempted have
	// terminated, or it is about to be bound.
	Nominated Situation = "Nominated"
	// OnVM is a pod on a node of a regular pool, or on a node in no pool.
	OnVM Situation = "OnVM"
	// InBurst is a pod in a burst pool.
	InBurst Situation = "InBurst"
	// Ended is a pod that has succeeded or failed.
	Ended Situation = "Ended"
	// OtherScheduler is a pod whose schedulerName names another scheduler.
	OtherScheduler Situation = "OtherScheduler"
	// Template is a workload's pod template, without a pod.
	Template Situation = "Template"
)

// Explanation is the output of the command `explain`.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	Object          corev1.ObjectReference `json:"object"`
	Situation       Situation              `json:"situation"`
	// Summary is the explanation in one line.
	Summary string `json:"summary"`
	// Since is when the pod began to wait or, if it has a node, when it was bound.
	Since time.Time `json:"since,omitzero"`
	// Pool is the pool of the pod's node, and Node is the name of that node.
	Pool string `json:"pool,omitempty"`
	Node string `json:"node,omitempty"`
	// CannotBurst is set if no burst pool can run the pod as it is. It is the code of the reason.
	CannotBurst string `json:"cannotBurst,omitempty"`
	// Said are the gate's reasons in the pod's condition PodScheduled, which the scheduler wrote at its last try.
	// Message is the whole message of the condition.
	Said    []nodegroups.Reason `json:"said,omitempty"`
	Message string              `json:"message,omitempty"`
	// Changed is set if the gate's decision has changed since the scheduler last tried the pod. If a gate is open now,
	// the scheduler will requeue the pod by itself.
	Changed bool `json:"changed,omitempty"`
	// Pools are the gate's decisions on the pools now. The plugin computes these decisions from the published state
	// with the scheduler's own code.
	Pools []PoolVerdict `json:"pools,omitempty"`
	// Changes are the events and times that may change the decision.
	Changes []Change `json:"changes,omitempty"`
	// Record has the reason why the scheduler let the pod into a burst pool. The scheduler wrote it when it bound the
	// pod.
	Record *gate.Record `json:"record,omitempty"`
	// Facts are the lines below the table of pools, each with a heading.
	Facts []Fact `json:"facts,omitempty"`
	// Pods counts the pods of a workload by pool. The key "" has the number of pending pods.
	Pods map[string]int `json:"pods,omitempty"`
	// Advice says what the user can do. Notes are warnings about the explanation.
	Advice []string `json:"advice,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// ExplanationList is the output of the command `explain -f`.
type ExplanationList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []*Explanation `json:"items"`
}

// PoolVerdict is the gate's decision on a pool, for one pod.
type PoolVerdict struct {
	Name  string `json:"name"`
	Rank  int    `json:"rank"`
	Burst bool   `json:"burst,omitempty"`
	// Verdict of a regular pool is Holds if the pool keeps the gate closed, and otherwise Passes. Verdict of a burst
	// pool is Open, Closed or Observed. Observed means that the gate would be closed with mode: Enforce.
	Verdict string `json:"verdict"`
	// State is the State in PoolStatus. For a burst pool, it is empty.
	State  string            `json:"state,omitempty"`
	Reason nodegroups.Reason `json:"reason,omitzero"`
	// Until is when a closed gate may open without an event.
	Until time.Time `json:"until,omitzero"`
	// Budget is the used part of a burst pool's budget, as text.
	Budget string         `json:"budget,omitempty"`
	Groups []GroupVerdict `json:"groups,omitempty"`
}

// The verdicts.
const (
	verdictHolds, verdictPasses                 = "Holds", "Passes"
	verdictOpen, verdictClosed, verdictObserved = "Open", "Closed", "Observed"
)

// GroupVerdict is the gate's decision on a node group, for one pod.
type GroupVerdict struct {
	Name   string            `json:"name,omitempty"`
	Holds  bool              `json:"holds,omitempty"`
	State  string            `json:"state"`
	Reason nodegroups.Reason `json:"reason"`
	Until  time.Time         `json:"until,omitzero"`
}

// Change is an event or a time that may change a decision.
type Change struct {
	// When is the event. It is empty if only time must pass.
	When string `json:"when,omitempty"`
	// At is the time of the change; unset if unknown. By is the setting that determines the time; unset if no setting
	// does.
	At time.Time `json:"at,omitzero"`
	By string    `json:"by,omitempty"`
}

// Fact is a line of an explanation with its heading.
type Fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// PodList is the output of the command `pods`. Pending pods come first. Pods with a node follow, in the order in which
// scale-in deletes pods.
type PodList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []Pod    `json:"items"`
	Notes           []string `json:"notes,omitempty"`
}

// Pod is a pod whose schedulerName is the name of the leading scheduler.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Pool is the pool of the pod's node. It is empty if the pod is pending or its node is in no pool.
	Pool string `json:"pool,omitempty"`
	Node string `json:"node,omitempty"`
	// Held is set if the pod is a held pod.
	Held  bool   `json:"held,omitempty"`
	Phase string `json:"phase,omitempty"`
	// Since is when the pod began to wait or, if it has a node, when it was bound.
	Since time.Time `json:"since,omitzero"`
	// Cost is the pod's deletion cost. Among equally ready pods, a ReplicaSet deletes the pods with the lowest cost
	// first.
	Cost *int `json:"cost,omitempty"`
	// Reasons are codes. For a pending pod, they say why the pod is pending. For a pod in a burst pool, the first code
	// says why the scheduler let the pod in. If the provider refused the pod, the second code is the provider's error.
	Reasons []string `json:"reasons,omitempty"`
}

// LintReport is the output of the command `lint`.
type LintReport struct {
	metav1.TypeMeta `json:",inline"`
	// Findings are sorted by severity.
	Findings []lint.Finding `json:"findings"`
	// VirtualNodeV1 and VirtualNodeV2 say whether the AKS cluster can have virtual nodes; empty without --aks.
	VirtualNodeV1 string `json:"virtualNodeV1,omitempty"`
	VirtualNodeV2 string `json:"virtualNodeV2,omitempty"`
	// NotChecked lists what could not be read, and why. These are no findings.
	NotChecked []string `json:"notChecked,omitempty"`
}

// Version is the output of the command `version`.
type Version struct {
	metav1.TypeMeta `json:",inline"`
	Client          string `json:"client"`
	Scheduler       string `json:"scheduler,omitempty"`
	Leader          string `json:"leader,omitempty"`
}
