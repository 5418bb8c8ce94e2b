package v1

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Order is a value of PoolPriorityArgs.Order.
type Order string

// The orders.
const (
	OrderStrict    Order = "Strict"
	OrderPreferred Order = "Preferred"
)

// Mode is a value of PoolPriorityArgs.Mode.
type Mode string

// The modes.
const (
	ModeEnforce Mode = "Enforce"
	ModeObserve Mode = "Observe"
)

// PoolPriorityArgs holds the arguments of the PoolPriority plugin.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type PoolPriorityArgs struct {
	metav1.TypeMeta `json:",inline"`

	// Order sets how the order of the pools counts. `Strict`: no pod goes to a pool while a node of an earlier pool is
	// feasible. `Preferred`: the place of a node's pool is a score from 0 to 100, weighed against other score plugins.
	// The gate applies in both cases.
	Order Order `json:"order,omitempty"`

	// Mode sets whether the gate acts. With `Observe`, the gate decides, logs and counts, but no pod is held, no node
	// is tainted and no running pod is changed. Burst nodes then come last, for pods that tolerate their taints by
	// themselves.
	Mode Mode `json:"mode,omitempty"`

	// Pools is the ordered list, most preferred first and burst pools last. A node belongs to the first pool whose
	// `nodeSelector` matches it. A node in no pool ranks between the regular pools and the burst pools. A
	// virtual-kubelet node in no burst pool is never used.
	Pools []Pool `json:"pools"`

	// Capacity sets how the states of regular pools are computed, and how long the gate holds pods. It matters only if
	// the list has a burst pool.
	Capacity Capacity `json:"capacity,omitempty"`

	// ScaleIn sets which pods a ReplicaSet deletes first.
	ScaleIn ScaleIn `json:"scaleIn,omitempty"`

	// GateTaint keeps the taint `poolpriority.dev/gate` on burst nodes, which hides them from autoscalers and other
	// schedulers. `false` is safe only if no pod tolerates burst nodes by itself.
	GateTaint *bool `json:"gateTaint,omitempty"`

	// StatusConfigMap is the ConfigMap, as NAMESPACE/NAME, in which the leader publishes the states of the pools. By
	// default it is in the scheduler's own namespace.
	StatusConfigMap string `json:"statusConfigMap,omitempty"`

	// Installation is the name of the installation and the value of its gate taint, so that several installations can
	// share a cluster. It is not part of the configuration file: the program that reads the file sets it
	// (InstallationOf).
	Installation string `json:"-"`
}

// GateTaintKey is the key of the taint that hides burst nodes. The taint's effect is NoSchedule, and its value is the
// name of the installation. Pod templates must not tolerate it.
const GateTaintKey = "poolpriority.dev/gate"

// ScaleIn sets which pods a ReplicaSet deletes first.
type ScaleIn struct {
	// PodDeletionCost makes the scheduler set the annotation `controller.kubernetes.io/pod-deletion-cost` on the pods
	// that it binds. A ReplicaSet then deletes its pods in burst pools first, and the others in the reverse order of
	// the pools.
	PodDeletionCost *bool `json:"podDeletionCost,omitempty"`

	// Others sets this annotation also on pods of other schedulers in listed pools, except in kube-system. When it is
	// off, these annotations are removed. It needs `podDeletionCost`.
	Others bool `json:"others,omitempty"`

	// HoldSurge keeps new pods of a Deployment's rolling update out of burst pools while the pods that they replace
	// terminate and free capacity.
	HoldSurge *bool `json:"holdSurge,omitempty"`
}

// Pool is one entry of the ordered list: a regular pool, or a burst pool if Burst is set.
type Pool struct {
	// Name identifies the pool in logs, metrics and messages. It is a unique DNS label.
	Name string `json:"name"`

	// NodeSelector selects the pool's nodes. It must not be empty.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`

	// NodeTemplate describes a new node of the pool. It is used for a node group that has no node and no known earlier
	// node, and always for a NodePool. Without it, every pod fits such a group, unless the pod's node selector or
	// required node affinity contradicts the pool's `nodeSelector`. For a NodePool, its requirements and taints count,
	// too.
	NodeTemplate *NodeTemplate `json:"nodeTemplate,omitempty"`

	// ClusterAutoscaler takes the maximum of the pool's node groups from the cluster autoscaler's status.
	ClusterAutoscaler *ClusterAutoscalerSource `json:"clusterAutoscaler,omitempty"`

	// Karpenter takes the maximum from the limits of a NodePool (Karpenter or AKS node auto-provisioning). Without
	// limits, the pool never reaches its maximum.
	Karpenter *KarpenterSource `json:"karpenter,omitempty"`

	// Static sets the maximum to a number of nodes.
	Static *StaticSource `json:"static,omitempty"`

	// Fixed marks a pool that never grows: it always counts as full.
	Fixed *FixedSource `json:"fixed,omitempty"`

	// Capacity overrides durations of the top-level `capacity` for this pool.
	Capacity *PoolCapacity `json:"capacity,omitempty"`

	// Burst makes this a burst pool: its gate opens for a pod only when no pool before it can grow for the pod.
	Burst *Burst `json:"burst,omitempty"`
}

// ClusterAutoscalerSource reads a pool's maximum from the cluster autoscaler's status ConfigMap.
type ClusterAutoscalerSource struct {
	// NodeGroups are patterns that match whole names of node groups, with the syntax of Go's path.Match:
	// `aks-userpool-*-vmss`. By default, AKS's names `aks-<agentpool>-<digits>-vmss` and `<agentpool>/<sku>` match,
	// with the agent pools of `nodeSelector` and of the pool's nodes.
	NodeGroups []string `json:"nodeGroups,omitempty"`

	// NodeTemplates describe new nodes of individual node groups. The first entry that matches a group is used, or else
	// the pool's `nodeTemplate`.
	NodeTemplates []NodeGroupTemplate `json:"nodeTemplates,omitempty"`
}

// NodeGroupTemplate describes a node that a node group would get if it grew.
type NodeGroupTemplate struct {
	// NodeGroup is a pattern for names of node groups, as in `nodeGroups`.
	NodeGroup string `json:"nodeGroup"`

	// NodeTemplate has the fields of `pools[].nodeTemplate`.
	NodeTemplate NodeTemplate `json:"nodeTemplate"`
}

// PoolCapacity overrides durations of Capacity for one pool.
type PoolCapacity struct {
	// ProvisionGrace overrides `capacity.provisionGrace`. Pools that share a NodePool use the longest of their values.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`

	// BackoffGrace overrides `capacity.backoffGrace`. Pools that share a NodePool use the longest of their values.
	BackoffGrace *metav1.Duration `json:"backoffGrace,omitempty"`

	// DeclineGrace overrides `capacity.declineGrace`.
	DeclineGrace *metav1.Duration `json:"declineGrace,omitempty"`
}

// KarpenterSource reads a pool's maximum from a NodePool (karpenter.sh/v1). It compares the NodePool's limits with its
// status.resources.
type KarpenterSource struct {
	// NodePool is the NodePool's name.
	NodePool string `json:"nodePool"`
}

// StaticSource states a pool's maximum.
type StaticSource struct {
	// MaxNodes is the number of nodes at which the pool is full.
	MaxNodes int32 `json:"maxNodes"`
}

// FixedSource is the source of a pool that never grows.
type FixedSource struct{}

// NodeTemplate describes a node that a pool would get if it grew.
type NodeTemplate struct {
	// Labels are all labels that pods may select. The labels of `nodeSelector.matchLabels`, `kubernetes.io/os: linux`
	// and `kubernetes.io/arch: amd64` are added if they are missing.
	Labels map[string]string `json:"labels,omitempty"`

	// Taints are the taints that stay on the node.
	Taints []corev1.Taint `json:"taints,omitempty"`

	// Allocatable is the node's allocatable resources. If cpu, memory or ephemeral-storage is not listed, requests for
	// it are not checked. The node has none of any other resource that is not listed. If the list is empty, nothing is
	// checked.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Burst makes a pool a burst pool.
type Burst struct {
	// Tolerations are added for pods that the gate lets in: for these pods, the scheduler ignores the matching taints.
	// The controller adds the tolerations, and one for the gate taint, to pods that run in the pool. Each toleration
	// needs a key and an effect other than NoExecute.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// MaxPods is a short form of `limits.pods`; only one of the two may be set. 0: no limit.
	MaxPods int32 `json:"maxPods,omitempty"`

	// Limits are the pool's budget. A pod is let in only if all pods on the pool's nodes, whichever scheduler bound
	// them, stay within it. Pods that have ended do not count. At least one limit must be set.
	Limits *BurstLimits `json:"limits,omitempty"`

	// NamespaceSelector selects the namespaces whose pods may burst. It must not be empty. By default, pods of all
	// namespaces may burst.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Platform is the service that runs the pods. It determines which pods cannot run there. `Other` is any other
	// virtual kubelet: only pods of DaemonSets and static pods cannot run on it.
	Platform Platform `json:"platform,omitempty"`

	// Largest is the cpu and memory of the largest pod that the provider runs. Larger pods stay on VMs. A resource that
	// is not listed is not checked.
	Largest corev1.ResourceList `json:"largest,omitempty"`

	// StartWithin is how long a pod may take from its binding to its start. A pod that takes longer is evicted. Each
	// time, the limit for the owner's next pods doubles, up to 16 times `startWithin`. 0: only pods that the provider
	// refused are evicted.
	StartWithin *metav1.Duration `json:"startWithin,omitempty"`

	// WaitLimit is how long a pod must be unschedulable before the pool opens for it, even if an earlier pool can grow.
	// 0: the pool does not open because of the time.
	WaitLimit metav1.Duration `json:"waitLimit,omitempty"`

	// Return evicts pods of the pool when VMs have capacity for them. It needs `order: Strict`.
	Return Return `json:"return,omitempty"`
}

// Platform is the service that runs the pods of a burst pool.
type Platform string

const (
	// PlatformACI is Azure Container Instances, behind AKS's virtual nodes.
	PlatformACI Platform = "AzureContainerInstances"
	// PlatformOther is any other virtual kubelet.
	PlatformOther Platform = "Other"
)

// BurstLimits are a burst pool's budget. A field that is not set limits nothing.
type BurstLimits struct {
	// Pods is the largest number of pods. 0: no limit.
	Pods int32 `json:"pods,omitempty"`

	// CPU is the most CPU that the provider may bill for all pods: their requests, and on Azure Container Instances 1
	// CPU for a container without a request.
	CPU *resource.Quantity `json:"cpu,omitempty"`

	// Memory is the most memory that the provider may bill for all pods: their requests, and on Azure Container
	// Instances 1.5 GB for a container without a request.
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Budget returns the pool's limits, with the number of pods from either Limits or MaxPods.
func (b *Burst) Budget() BurstLimits {
	limits := ptr.Deref(b.Limits, BurstLimits{})
	limits.Pods = cmp.Or(limits.Pods, b.MaxPods)
	return limits
}

// Return evicts pods of a burst pool for which nodes outside of burst pools have capacity: first pods that have not
// started, then the oldest. It does not order nodes. It evicts pods of ReplicaSets, StatefulSets and
// ReplicationControllers, and pods of other controllers that have the annotation poolpriority.dev/return: Always. To
// find such nodes, it runs the profile's Filter plugins, except for plugins that are not part of Kubernetes.
type Return struct {
	// Enabled turns the return of pods on.
	Enabled bool `json:"enabled,omitempty"`

	// StableFor is how long VMs must have had capacity for a pod before the pod is evicted.
	StableFor *metav1.Duration `json:"stableFor,omitempty"`

	// EvictionsPerMinute is how many pods of the pool are evicted in a minute, evenly spread.
	EvictionsPerMinute int32 `json:"evictionsPerMinute,omitempty"`

	// PerWorkload is how many evicted pods of a workload may be without a ready replacement at a time.
	PerWorkload int32 `json:"perWorkload,omitempty"`
}

// Capacity sets how the states of regular pools are computed, and how long the gate holds pods.
type Capacity struct {
	// ClusterAutoscalerStatus is the ConfigMap, as NAMESPACE/NAME, that the cluster autoscaler writes.
	ClusterAutoscalerStatus string `json:"clusterAutoscalerStatus,omitempty"`

	// StaleAfter is how long the status may stay unchanged before its pools count as Unknown. The autoscaler writes the
	// status about every 10 s.
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`

	// UnknownGrace is how long an Unknown node group keeps the gate closed before it counts as Full. While one of its
	// nodes is starting, the gate stays closed.
	UnknownGrace *metav1.Duration `json:"unknownGrace,omitempty"`

	// ProvisionGrace is how long a node group waits for nodes that were ordered and are not usable yet. The time counts
	// from the last order or arrival of a node. The default is that of the autoscaler's `--max-node-provision-time`.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`

	// BackoffGrace is how long a node group must be in backoff, or all launches of a NodePool must fail, before it
	// counts as Full.
	BackoffGrace *metav1.Duration `json:"backoffGrace,omitempty"`

	// DeclineGrace is how long a pod must be unschedulable before a node group that could grow, but does not, declines
	// it. Four whole loops of the autoscaler must pass, too. The node group of a static pool declines the pod after
	// `provisionGrace`, or after `declineGrace` if that is longer. No loops are counted for it.
	DeclineGrace *metav1.Duration `json:"declineGrace,omitempty"`

	// NewPodDelay is the value of the autoscaler's `--new-pod-scale-up-delay`. The autoscaler ignores younger pods. If
	// a pod has the autoscaler's annotation `pod-scale-up-delay`, the longer of the two delays counts.
	NewPodDelay *metav1.Duration `json:"newPodDelay,omitempty"`

	// HoldLimit is the longest time that a pod is held, whatever the states of the pools. The time counts from when the
	// pod became unschedulable, and again from when a node that the pod might use became usable. In all, a pod is held
	// for at most twice this time. 0: no limit.
	HoldLimit *metav1.Duration `json:"holdLimit,omitempty"`
}
