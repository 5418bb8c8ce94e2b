package cli

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// APIVersion is the apiVersion of the output of -o json and -o yaml. Times are in RFC 3339, and quantities are strings.
const APIVersion = published.ViewVersion

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: APIVersion, Kind: kind}
}

// PoolStatusList is the output of status.
type PoolStatusList struct {
	metav1.TypeMeta `json:",inline"`
	// Written is when the leader last published, by its clock.
	Written time.Time `json:"written,omitzero"`
	// Leader and Version are the name and the version of the scheduler that leads. SchedulerName is the schedulerName
	// of its pods.
	Leader        string `json:"leader,omitempty"`
	Version       string `json:"version,omitempty"`
	SchedulerName string `json:"schedulerName,omitempty"`
	// Mode and Order are from the configuration.
	Mode  string `json:"mode,omitempty"`
	Order string `json:"order,omitempty"`
	// Items are the pools, the most preferred first.
	Items []PoolStatus `json:"items"`
	// Held counts the pods that the gate holds back.
	Held published.Held `json:"held"`
	// UnlistedNodes is the number of nodes in no pool.
	UnlistedNodes int `json:"unlistedNodes,omitempty"`
	// Problems are mistakes that the scheduler found and that the user can fix. Notes are warnings about the output.
	Problems []string `json:"problems,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

// PoolStatus is the status of a pool.
type PoolStatus struct {
	Name string `json:"name"`
	// Rank is the pool's place in the order.
	Rank  int  `json:"rank"`
	Burst bool `json:"burst,omitempty"`
	// State of a regular pool is CanGrow, Growing, Full or Unknown. State of a burst pool is Down (it has no usable
	// node), Refusing or HalfOpen (its provider's state), or else the gate's decision for gate.PlainPod: Open, Spent
	// (its budget is used up) or Closed.
	State  string            `json:"state"`
	Reason nodegroups.Reason `json:"reason,omitzero"`
	// HeldBy are the pools that keep the gate of a burst pool closed.
	HeldBy []PoolState `json:"heldBy,omitempty"`
	// Since is when the pool entered the state, if that is known. Until is when the state may change without an event.
	Since time.Time  `json:"since,omitzero"`
	Until time.Time  `json:"until,omitzero"`
	Nodes NodeCounts `json:"nodes"`
	// Pods is the number of pods on the pool's nodes, without pods that have ended; not set if unknown.
	Pods *int `json:"pods,omitempty"`
	// Requested is the sum of these pods' requests or, in a burst pool, of the resources that the provider bills.
	Requested   corev1.ResourceList `json:"requested,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Limits are a burst pool's budget.
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// Source is the source of a regular pool's state: ClusterAutoscaler, Karpenter, Static or Fixed.
	Source string        `json:"source,omitempty"`
	Groups []GroupStatus `json:"groups,omitempty"`
}

// PoolState is a pool with its state.
type PoolState struct {
	Pool  string `json:"pool"`
	State string `json:"state"`
}

// NodeCounts counts the nodes of a pool.
type NodeCounts struct {
	Total int `json:"total"`
	// Ready is the number of nodes that are ready and not cordoned; not set if unknown.
	Ready *int `json:"ready,omitempty"`
	// OnTheirWay counts ordered nodes that have no Node object yet, and nodes that are not usable yet.
	OnTheirWay int `json:"onTheirWay,omitempty"`
	Leaving    int `json:"leaving,omitempty"`
	// Max is the maximum number of nodes; not set if there is none, or if it is unknown.
	Max *int `json:"max,omitempty"`
}

// GroupStatus is the status of a node group.
type GroupStatus struct {
	// Name is empty for nodes that are in no group.
	Name   string            `json:"name,omitempty"`
	State  string            `json:"state"`
	Reason nodegroups.Reason `json:"reason"`
	Since  time.Time         `json:"since,omitzero"`
	Until  time.Time         `json:"until,omitzero"`
	Nodes  int               `json:"nodes"`
	Max    *int              `json:"max,omitempty"`
}

// Situation is the kind of an explanation.
type Situation string

const (
	// Waits is a pending pod that the scheduler has tried.
	Waits Situation = "Waits"
	// NotTried is a pod that the scheduler has not tried yet.
	NotTried Situation = "NotTried"
	// SchedulingGated is a pod that waits for scheduling gates to be removed.
	SchedulingGated Situation = "SchedulingGated"
	// Nominated is a pending pod with a nominatedNodeName: it waits for its victims to end, or is about to be bound.
	Nominated Situation = "Nominated"
	// OnVM is a pod on a node of a regular pool, or on a node in no pool.
	OnVM Situation = "OnVM"
	// InBurst is a pod in a burst pool.
	InBurst Situation = "InBurst"
	// Ended is a pod that has ended.
	Ended Situation = "Ended"
	// OtherScheduler is a pod whose schedulerName is that of another scheduler.
	OtherScheduler Situation = "OtherScheduler"
	// Template is a workload's pod template, without a pod.
	Template Situation = "Template"
)

// Explanation is the output of explain.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	Object          corev1.ObjectReference `json:"object"`
	Situation       Situation              `json:"situation"`
	// Summary is the explanation in one line.
	Summary string `json:"summary"`
	// Since is when the pod began to wait or, if it has a node, when it was bound.
	Since time.Time `json:"since,omitzero"`
	// Pool is the pool that the pod is in, and Node is its node.
	Pool string `json:"pool,omitempty"`
	Node string `json:"node,omitempty"`
	// CannotBurst is the code of the reason why no burst pool will take the pod unless the pod is changed.
	CannotBurst string `json:"cannotBurst,omitempty"`
	// Said are the gate's reasons in the pod's condition PodScheduled, which the scheduler wrote at its last try.
	// Message is the whole message of that condition.
	Said    []nodegroups.Reason `json:"said,omitempty"`
	Message string              `json:"message,omitempty"`
	// Changed is set if the gate's decision has changed since the scheduler's last try. If a gate is open now, the
	// scheduler will requeue the pod by itself.
	Changed bool `json:"changed,omitempty"`
	// Pools are the decisions on the pools now. They are computed from the published state by the scheduler's own rule.
	Pools []PoolVerdict `json:"pools,omitempty"`
	// Changes are the events and times that may change the decision.
	Changes []Change `json:"changes,omitempty"`
	// Record has the reason why the pod was let into a burst pool. It was written when the pod was bound.
	Record *gate.Record `json:"record,omitempty"`
	// Facts are further facts, each with a heading.
	Facts []Fact `json:"facts,omitempty"`
	// Pods counts the pods of a workload by pool. Pods that wait are counted under "".
	Pods map[string]int `json:"pods,omitempty"`
	// Advice is what to do. Notes are warnings about the explanation.
	Advice []string `json:"advice,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// ExplanationList is the output of explain for several objects.
type ExplanationList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []*Explanation `json:"items"`
}

// PoolVerdict is the gate's decision on a pool, for one pod.
type PoolVerdict struct {
	Name  string `json:"name"`
	Rank  int    `json:"rank"`
	Burst bool   `json:"burst,omitempty"`
	// Verdict of a regular pool is Holds (the gate is closed because of the pool) or Passes. Verdict of a burst pool is
	// Open, Closed, or Observed: it would be Closed with mode: Enforce.
	Verdict string `json:"verdict"`
	// State is the pool's state, as in the output of status; empty for burst pools.
	State  string            `json:"state,omitempty"`
	Reason nodegroups.Reason `json:"reason,omitzero"`
	// Until is when a closed gate may open because time has passed.
	Until time.Time `json:"until,omitzero"`
	// Budget is the usage of a burst pool's budget, as text.
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
	// At is the time of the change, if it is known. By is the setting that determines the time. Each may be unset.
	At time.Time `json:"at,omitzero"`
	By string    `json:"by,omitempty"`
}

// Fact is a fact with its heading.
type Fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// PodList is the output of pods: first the pending pods, then the others in the order of scale-in.
type PodList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []Pod    `json:"items"`
	Notes           []string `json:"notes,omitempty"`
}

// Pod is a pod whose schedulerName is the scheduler's.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Pool is the pool that the pod is in; empty while the pod waits, or if its node is in no pool.
	Pool string `json:"pool,omitempty"`
	Node string `json:"node,omitempty"`
	// Held is set if the gate holds the pod.
	Held  bool   `json:"held,omitempty"`
	Phase string `json:"phase,omitempty"`
	// Since is when the pod began to wait or, if it has a node, when it was bound.
	Since time.Time `json:"since,omitzero"`
	// Cost is the pod's deletion cost. Of pods that are equally ready, a ReplicaSet deletes those with the lowest cost
	// first.
	Cost *int `json:"cost,omitempty"`
	// Reasons are codes. A pending pod has the reasons why it waits. A pod in a burst pool has the reason why it was
	// let in and, if the provider refused it, the provider's error.
	Reasons []string `json:"reasons,omitempty"`
}

// Version is the output of the command `version`.
type Version struct {
	metav1.TypeMeta `json:",inline"`
	Client          string `json:"client"`
	Scheduler       string `json:"scheduler,omitempty"`
	Leader          string `json:"leader,omitempty"`
}
