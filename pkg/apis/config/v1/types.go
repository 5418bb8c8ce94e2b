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

	// Order sets how the ranks of the pools count. `Strict`: no pod goes to a pool while a node of a better-ranked pool
	// is feasible. `Preferred`: the rank is a score from 0 to 100, weighed against other score plugins. The gate
	// applies in both cases.
	Order Order `json:"order,omitempty"`

	// Mode sets whether the gate acts. `Observe` decides, logs and counts, but holds no pod, keeps no gate taint and
	// changes no running pod. Burst nodes then come last, for pods that tolerate their taints by themselves.
	Mode Mode `json:"mode,omitempty"`

	// Pools is the ordered list, most preferred first and burst pools last. A node belongs to the first pool that
	// selects it. A node in no pool ranks between the regular pools and the burst pools. A virtual-kubelet node in no
	// burst pool is never used.
	Pools []Pool `json:"pools"`

	// Capacity sets when a regular pool counts as Full or Unknown. It matters only if the list has a burst pool.
	Capacity Capacity `json:"capacity,omitempty"`

	// ScaleIn sets which pods a ReplicaSet deletes first.
	ScaleIn ScaleIn `json:"scaleIn,omitempty"`

	// GateTaint keeps the taint `poolpriority.dev/gate` on burst nodes, which hides them from autoscalers and other
	// schedulers. `false` is safe only if no pod tolerates burst nodes by itself.
	GateTaint *bool `json:"gateTaint,omitempty"`

	// StatusConfigMap is the ConfigMap, as NAMESPACE/NAME, in which the leader publishes the states of the pools. By
	// default it is in the scheduler's own namespace.
	StatusConfigMap string `json:"statusConfigMap,omitempty"`

	// Installation is the name of the installation, which sets its gate taint apart from those of others. Users do not
	// write it: the program that reads the configuration sets it to InstallationOf.
	Installation string `json:"-"`
}

// GateTaintKey is the key of the taint that hides burst nodes. Its effect is NoSchedule and its value is the name of
// the installation. No pod template tolerates it.
const GateTaintKey = "poolpriority.dev/gate"

// ScaleIn sets which pods a ReplicaSet deletes first.
type ScaleIn struct {
	// PodDeletionCost binds pods with the annotation `controller.kubernetes.io/pod-deletion-cost`. A ReplicaSet then
	// deletes its pods in burst pools first, and the others in the reverse order of the pools.
	PodDeletionCost *bool `json:"podDeletionCost,omitempty"`

	// Others sets that cost also on pods of other schedulers in listed pools, except in kube-system. Once it is off,
	// these costs are removed. It needs `podDeletionCost`.
	Others bool `json:"others,omitempty"`

	// HoldSurge makes new pods of a Deployment's rolling update wait for the room of the pods that they replace,
	// instead of bursting.
	HoldSurge *bool `json:"holdSurge,omitempty"`
}

// Pool is one entry of the ordered list: a regular pool, or a burst pool if Burst is set.
type Pool struct {
	// Name identifies the pool in logs, metrics and messages. It is a unique DNS label.
	Name string `json:"name"`

	// NodeSelector selects the pool's nodes. It must not be empty.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`

	// NodeTemplate describes a new node of the pool. It is used while a node group has no node and none has been seen.
	// Without it, such a group counts as fit for any pod that `nodeSelector` does not rule out.
	NodeTemplate *NodeTemplate `json:"nodeTemplate,omitempty"`

	// ClusterAutoscaler reads the maximum of the pool's node groups from the cluster autoscaler's status.
	ClusterAutoscaler *ClusterAutoscalerSource `json:"clusterAutoscaler,omitempty"`

	// Karpenter reads the maximum from the limits of a NodePool (Karpenter or AKS node auto-provisioning). Without
	// limits the pool is never full.
	Karpenter *KarpenterSource `json:"karpenter,omitempty"`

	// Static sets the maximum to a number of nodes.
	Static *StaticSource `json:"static,omitempty"`

	// Fixed marks a pool that never grows: it always counts as full.
	Fixed *FixedSource `json:"fixed,omitempty"`

	// Capacity overrides graces of `capacity` for this pool.
	Capacity *PoolCapacity `json:"capacity,omitempty"`

	// Burst makes this a burst pool: gated, and open only when the pools before it can grow no more.
	Burst *Burst `json:"burst,omitempty"`
}

// ClusterAutoscalerSource reads a pool's maximum from the cluster autoscaler's status ConfigMap.
type ClusterAutoscalerSource struct {
	// NodeGroups are patterns for whole names of node groups, as in Go's path.Match: `aks-userpool-*-vmss`. The default
	// is AKS's names `aks-<agentpool>-<digits>-vmss` and `<agentpool>/<sku>`, with the agent pools of `nodeSelector`
	// and of the pool's nodes.
	NodeGroups []string `json:"nodeGroups,omitempty"`

	// NodeTemplates describe new nodes of individual node groups. The first that matches is used, else the pool's
	// `nodeTemplate`.
	NodeTemplates []NodeGroupTemplate `json:"nodeTemplates,omitempty"`
}

// NodeGroupTemplate describes a node that a node group would get if it grew.
type NodeGroupTemplate struct {
	// NodeGroup is a pattern for names of node groups, as in `nodeGroups`.
	NodeGroup string `json:"nodeGroup"`

	// NodeTemplate has the fields of `pools[].nodeTemplate`.
	NodeTemplate NodeTemplate `json:"nodeTemplate"`
}

// PoolCapacity overrides graces of Capacity for one pool.
type PoolCapacity struct {
	// ProvisionGrace overrides `capacity.provisionGrace`. Pools that share a NodePool use the longest.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`

	// BackoffGrace overrides `capacity.backoffGrace`. Pools that share a NodePool use the longest.
	BackoffGrace *metav1.Duration `json:"backoffGrace,omitempty"`

	// DeclineGrace overrides `capacity.declineGrace`.
	DeclineGrace *metav1.Duration `json:"declineGrace,omitempty"`
}

// KarpenterSource reads a pool's maximum from a NodePool (karpenter.sh/v1): its limits against its status.resources.
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
	// Labels are all labels that pods may ask for. Those of `nodeSelector.matchLabels`, `kubernetes.io/os: linux` and
	// `kubernetes.io/arch: amd64` are added if absent.
	Labels map[string]string `json:"labels,omitempty"`

	// Taints are the taints that stay on the node.
	Taints []corev1.Taint `json:"taints,omitempty"`

	// Allocatable is what the node offers to pods. Unlisted cpu, memory and ephemeral-storage are not checked. Any
	// other unlisted resource is absent. If the list is empty, nothing is checked.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Burst makes a pool a burst pool.
type Burst struct {
	// Tolerations are added for pods that the gate lets in: the scheduler ignores the taints that they match. The
	// controller adds them, and one for the gate taint, to the pods that run there. Each needs a key and an effect
	// other than NoExecute.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// MaxPods is short for `limits.pods`; only one of the two may be set. 0: no limit.
	MaxPods int32 `json:"maxPods,omitempty"`

	// Limits are the pool's budget. A pod is let in only if all pods on the pool's nodes, whichever scheduler bound
	// them, stay within it. Pods that have ended do not count. At least one limit must be set.
	Limits *BurstLimits `json:"limits,omitempty"`

	// NamespaceSelector selects the namespaces whose pods may burst. It must not be empty. The default is all.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Platform is what runs the pods. It sets which pods cannot run there. `Other` is any other virtual kubelet: only
	// pods of DaemonSets and static pods cannot run on it.
	Platform Platform `json:"platform,omitempty"`

	// Largest is the cpu and memory of the largest pod that the provider runs. Larger pods stay on VMs. What is not
	// listed is not checked.
	Largest corev1.ResourceList `json:"largest,omitempty"`

	// StartWithin is the time from its binding in which a pod must start. A pod that takes longer is evicted, and the
	// next pods of its owner get twice as long, up to 16 times. 0: only pods that the provider refused are evicted.
	StartWithin *metav1.Duration `json:"startWithin,omitempty"`

	// WaitLimit opens the pool for a pod that has been unschedulable this long, whatever the autoscaler does. 0: never.
	WaitLimit metav1.Duration `json:"waitLimit,omitempty"`

	// Return evicts pods of the pool once VMs have room for them. It needs `order: Strict`.
	Return Return `json:"return,omitempty"`
}

// Platform is what runs the pods of a burst pool.
type Platform string

const (
	// PlatformACI is Azure Container Instances, behind AKS's virtual nodes.
	PlatformACI Platform = "AzureContainerInstances"
	// PlatformOther is any other virtual kubelet.
	PlatformOther Platform = "Other"
)

// BurstLimits are a burst pool's budget. What is not set is not limited.
type BurstLimits struct {
	// Pods is a number of pods. 0: no limit.
	Pods int32 `json:"pods,omitempty"`

	// CPU limits the CPUs that the provider bills: the requests, and on Azure Container Instances 1 CPU for a container
	// without a request.
	CPU *resource.Quantity `json:"cpu,omitempty"`

	// Memory limits the memory that the provider bills: the requests, and on Azure Container Instances 1.5 GB for a
	// container without a request.
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Budget returns the pool's limits, whichever way they were written. What is not set is not limited.
func (b *Burst) Budget() BurstLimits {
	limits := ptr.Deref(b.Limits, BurstLimits{})
	limits.Pods = cmp.Or(limits.Pods, b.MaxPods)
	return limits
}

// Return evicts pods of a burst pool for which nodes outside of burst pools have room: first those that have not
// started, then the oldest. No node is ordered for it. It evicts pods of ReplicaSets, StatefulSets and
// ReplicationControllers, and pods of other controllers that have the annotation poolpriority.dev/return: Always. To
// find room, it runs those filter plugins of the profile that are part of Kubernetes.
type Return struct {
	// Enabled turns the return of pods on.
	Enabled bool `json:"enabled,omitempty"`

	// StableFor is how long VMs must have had room for a pod before it is evicted.
	StableFor *metav1.Duration `json:"stableFor,omitempty"`

	// EvictionsPerMinute is how many pods of the pool are evicted in a minute, evenly spread.
	EvictionsPerMinute int32 `json:"evictionsPerMinute,omitempty"`

	// PerWorkload is how many evicted pods of a workload may lack a ready replacement at a time.
	PerWorkload int32 `json:"perWorkload,omitempty"`
}

// Capacity sets when a regular pool counts as Full or Unknown.
type Capacity struct {
	// ClusterAutoscalerStatus is the ConfigMap, as NAMESPACE/NAME, that the cluster autoscaler writes.
	ClusterAutoscalerStatus string `json:"clusterAutoscalerStatus,omitempty"`

	// StaleAfter is how long the status may stay unchanged before its pools count as Unknown. The autoscaler writes it
	// about every 10 s.
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`

	// UnknownGrace is how long an Unknown node group keeps the gate closed before it counts as Full. While one of its
	// nodes is starting, the gate stays closed.
	UnknownGrace *metav1.Duration `json:"unknownGrace,omitempty"`

	// ProvisionGrace is how long ordered nodes that are not usable yet count as on their way, from the last order or
	// arrival. The default is that of the autoscaler's `--max-node-provision-time`.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`

	// BackoffGrace is how long a node group must be in backoff, or all launches of a NodePool must fail, before it
	// counts as Full.
	BackoffGrace *metav1.Duration `json:"backoffGrace,omitempty"`

	// DeclineGrace is how long a pod must be unschedulable before a node group that can grow, but is not scaled up,
	// declines it. Four whole loops of the autoscaler must pass, too. A static pool declines after its `provisionGrace`.
	DeclineGrace *metav1.Duration `json:"declineGrace,omitempty"`

	// NewPodDelay is the autoscaler's `--new-pod-scale-up-delay`: it ignores younger pods. A pod's annotation for it
	// counts if it is longer.
	NewPodDelay *metav1.Duration `json:"newPodDelay,omitempty"`

	// HoldLimit is the longest time that a pod is held, whatever the states of the pools. It starts when the pod
	// becomes unschedulable, and starts again when a node arrives that the pod might use, up to twice the time in all.
	// 0: no limit.
	HoldLimit *metav1.Duration `json:"holdLimit,omitempty"`
}
