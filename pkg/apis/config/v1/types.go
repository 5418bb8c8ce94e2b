package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	// Order sets how the order of the pools is applied. With `Strict`, each pod uses the first pool that has a feasible
	// node. With `Preferred`, each node gets a score from 0 to 100 for its pool's place, and other score plugins count,
	// too. The gate applies in both cases.
	Order Order `json:"order,omitempty"`

	// Mode sets whether decisions take effect. With `Observe`, the scheduler only logs and counts decisions. No pod is
	// held, no node is tainted and no running pod is changed. Pods with their own tolerations for burst nodes use these
	// nodes last.
	Mode Mode `json:"mode,omitempty"`

	// Pools is the ordered list, most preferred first and burst pools last. A node belongs to the first pool whose
	// `nodeSelector` matches it. A node in no pool ranks between the regular pools and the burst pools. A
	// virtual-kubelet node in no burst pool is never used.
	Pools []Pool `json:"pools"`

	// Orders are other orders of the pools. A pod names its order in the annotation `poolpriority.dev/order`. Without the
	// annotation, the order is that of `pools`. Alpha.
	Orders []NamedOrder `json:"orders,omitempty"`

	// Tenants makes bursting an administrator's decision. With `true`, only pods of labelled namespaces may burst. Without
	// further labels, a pod waits for a VM if it would lose a protection (`burst.allow`), or if its node selector,
	// affinity or size rules out all VMs.
	Tenants bool `json:"tenants,omitempty"`

	// Capacity sets how the states of regular pools are computed, and how long the gate holds pods. It has no effect
	// without a burst pool.
	Capacity Capacity `json:"capacity,omitempty"`

	// ScaleIn sets which pods a ReplicaSet deletes first.
	ScaleIn ScaleIn `json:"scaleIn,omitempty"`

	// GateTaint keeps the taint `poolpriority.dev/gate` on burst nodes. The taint hides burst nodes from autoscalers
	// and other schedulers. `false` is safe only if no pod has its own tolerations for burst nodes.
	GateTaint *bool `json:"gateTaint,omitempty"`

	// StatusConfigMap is the ConfigMap, as NAMESPACE/NAME, in which the leader publishes the states of the pools. The
	// default is in the scheduler's own namespace.
	StatusConfigMap string `json:"statusConfigMap,omitempty"`

	// Installation is the name of the installation and the value of its gate taint, so that several installations can
	// share a cluster. The configuration file has no such field. The program that reads the file sets Installation
	// (InstallationOf).
	Installation string `json:"-"`

	// Unelected is set by Load if leaderElection.leaderElect is false.
	Unelected bool `json:"-"`
}

// GateTaintKey is the key of the taint that hides burst nodes. The taint's effect is NoSchedule, and its value is the
// name of the installation. Pod templates must not tolerate the taint.
const GateTaintKey = "poolpriority.dev/gate"

// ProviderTaintKey is the key of the taint that virtual kubelets give their nodes.
const ProviderTaintKey = "virtual-kubelet.io/provider"

// DeletionCosts is a value of ScaleIn.DeletionCosts.
type DeletionCosts string

// The values of ScaleIn.DeletionCosts.
const (
	CostsOwn  DeletionCosts = "Own"
	CostsAll  DeletionCosts = "All"
	CostsNone DeletionCosts = "None"
)

// ScaleIn sets which pods a ReplicaSet deletes first.
type ScaleIn struct {
	// DeletionCosts says which pods get the annotation `controller.kubernetes.io/pod-deletion-cost`, with which a
	// ReplicaSet deletes its pods in the reverse order of the pools, those in burst pools first. `Own` are the pods that
	// the scheduler binds. With `All`, the controller sets it also on pods of other schedulers in listed pools, except in
	// kube-system. With `None`, the scheduler sets none.
	DeletionCosts DeletionCosts `json:"deletionCosts,omitempty"`

	// HoldSurge keeps new pods of a Deployment's rolling update out of burst pools while the replaced pods terminate
	// and free capacity.
	HoldSurge *bool `json:"holdSurge,omitempty"`
}

// Pool is one entry of the ordered list: a regular pool, or a burst pool if Burst is set.
type Pool struct {
	// Name identifies the pool in logs, metrics and messages. It is a unique DNS label.
	Name string `json:"name"`

	// NodeSelector selects the pool's nodes. It must not be empty.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`

	// NodeTemplate describes a new node of the pool. It is used for node groups without a known current or earlier
	// node, and always for a NodePool. Without a template, a pod fits such a group if the pod's node selector and
	// required node affinity are compatible with the pool's `nodeSelector`. A NodePool's own requirements and taints
	// are also checked.
	NodeTemplate *NodeTemplate `json:"nodeTemplate,omitempty"`

	// ClusterAutoscaler takes the maximum of the pool's node groups from the cluster autoscaler's status.
	ClusterAutoscaler *ClusterAutoscalerSource `json:"clusterAutoscaler,omitempty"`

	// Karpenter takes the maximum from the limits of a NodePool (Karpenter or AKS node auto-provisioning). If the
	// NodePool has no limits, the pool is never full.
	Karpenter *KarpenterSource `json:"karpenter,omitempty"`

	// Static sets the maximum to a number of nodes.
	Static *StaticSource `json:"static,omitempty"`

	// Fixed marks a pool that never grows and is always full.
	Fixed *FixedSource `json:"fixed,omitempty"`

	// Capacity overrides durations of the top-level `capacity` for this pool.
	Capacity *PoolCapacity `json:"capacity,omitempty"`

	// Return evicts pods of a regular pool when a better regular pool has capacity for them, for example to return them
	// to spot VMs. It is for regular pools but the first. It needs `order: Strict`. Alpha.
	Return *Return `json:"return,omitempty"`

	// Burst makes this a burst pool. Its gate opens for a pod when no earlier pool can grow for the pod.
	Burst *Burst `json:"burst,omitempty"`
}

// NamedOrder is another order of the pools.
type NamedOrder struct {
	// Name is the value of the annotation. It is a unique DNS label.
	Name string `json:"name"`

	// Pools are names of pools, most preferred first, burst pools last and in the order of `pools`. Regular pools that
	// are not listed come after those that are. Burst pools that are not listed are closed to the pods.
	Pools []string `json:"pools"`
}

// ClusterAutoscalerSource reads a pool's maximum from the cluster autoscaler's status ConfigMap.
type ClusterAutoscalerSource struct {
	// NodeGroups are patterns that match whole names of node groups: `aks-userpool-*-vmss`. The syntax is that of Go's
	// path.Match, but `*` also matches slashes. By default, AKS's names `aks-<agentpool>-<digits>-vmss` and
	// `<agentpool>/<sku>` match for each agent pool in `nodeSelector` and in the nodes' labels.
	NodeGroups []string `json:"nodeGroups,omitempty"`

	// NodeTemplates describe new nodes of individual node groups. The first entry that matches a group replaces the
	// pool's `nodeTemplate` for this group.
	NodeTemplates []NodeGroupTemplate `json:"nodeTemplates,omitempty"`
}

// NodeGroupTemplate describes the new nodes of the matching node groups.
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

// StaticSource sets a pool's maximum to a number of nodes.
type StaticSource struct {
	// MaxNodes is the number of nodes at which the pool is full.
	MaxNodes int32 `json:"maxNodes"`
}

// FixedSource is the source of a pool that never grows.
type FixedSource struct{}

// NodeTemplate describes a new node of a pool or of a node group.
type NodeTemplate struct {
	// Labels are all labels that pods may select. The labels of `nodeSelector.matchLabels`, `kubernetes.io/os: linux`
	// and `kubernetes.io/arch: amd64` are added if they are missing.
	Labels map[string]string `json:"labels,omitempty"`

	// Taints are the node's taints, without startup taints.
	Taints []corev1.Taint `json:"taints,omitempty"`

	// Allocatable is the node's allocatable resources. Requests for cpu, memory and ephemeral-storage are checked only
	// if the resource is listed. Any other unlisted resource counts as 0. If the list is empty, no requests are
	// checked.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Burst makes a pool a burst pool.
type Burst struct {
	// Tolerations match the taints that the scheduler ignores for pods that the gate lets in. Each toleration needs a key
	// and an effect other than NoExecute. The default is for Azure Container Instances. With `[]`, only pods with their own
	// tolerations burst.
	Tolerations []corev1.Toleration `json:"tolerations,omitzero"`

	// AddTolerations has the controller add these tolerations, and one for the gate taint, to pods that run in the pool.
	// Without them, a descheduler may evict the pods (RemovePodsViolatingNodeTaints).
	AddTolerations *bool `json:"addTolerations,omitempty"`

	// Limits are the pool's budget. The gate lets in a pod only if all this scheduler's pods on the pool's nodes,
	// including this pod, stay within the budget. Pods of other schedulers, and terminated pods, do not count. Set at least
	// one limit.
	Limits *BurstLimits `json:"limits,omitempty"`

	// PerNamespace is the budget of each namespace in the pool, beside `limits` and with the same fields. All pods of
	// the namespace on the pool's nodes count, including pods of DaemonSets. Set at least one limit. With
	// `tenants`, the default is half of `limits`, but not less than what one pod may request.
	PerNamespace *BurstLimits `json:"perNamespace,omitempty"`

	// Creates bounds how many pods are bound to the pool's nodes in a time, so that the provider does not answer 429. With
	// `tenants`, a namespace may use half. `platform: Other` has no defaults. 0 means no limit.
	Creates BurstCreates `json:"creates,omitzero"`

	// NamespaceSelector selects the namespaces whose pods may burst. It must not be empty. By default, pods of all
	// namespaces may burst, or with `tenants`, pods of labelled namespaces.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Allow lists the protections that pods may lose in the pool with `tenants`: `NetworkPolicy` (the NetworkPolicies that
	// select the pod), `SecurityContext` (the settings that restricted Pod Security requires) and `Sandbox` (that of the
	// RuntimeClass).
	Allow []Loss `json:"allow,omitempty"`

	// Platform is the service that runs the pods. It determines which pods cannot burst. `Other` is any other virtual
	// kubelet, which runs all pods except pods of DaemonSets and static pods.
	Platform Platform `json:"platform,omitempty"`

	// Largest is the most cpu and memory that one pod may request to run in the pool. Larger pods stay on VMs. An
	// unlisted resource is not checked.
	Largest corev1.ResourceList `json:"largest,omitempty"`

	// StartWithin is how long a pod may take from its binding to its start. A pod that takes longer is evicted. Each
	// such eviction doubles the limit for the owner's next pods, up to 16 times `startWithin`. With 0, only pods that
	// the provider refused are evicted.
	StartWithin *metav1.Duration `json:"startWithin,omitempty"`

	// WaitLimit is the time after which the gate opens for an unschedulable pod, even if an earlier pool can grow. 0
	// means no limit.
	WaitLimit metav1.Duration `json:"waitLimit,omitempty"`

	// WhileGrowing sets whether a pod waits for nodes that are on their way. `Hold` keeps the gate closed. `Overflow` opens
	// it if no earlier pool can get more nodes, and those on their way have no room for the pod. NodePools, and node
	// groups that grow from zero, always hold. `Overflow` excludes `waitLimit` in all pools, and is alpha.
	WhileGrowing WhileGrowing `json:"whileGrowing,omitempty"`

	// MakeRoom makes a pod preempt pods of low priority, such as placeholders, before it bursts. Preemption needs
	// `order: Strict`. Alpha.
	MakeRoom MakeRoom `json:"makeRoom,omitempty"`

	// Return evicts pods of the pool when VMs have capacity for them. It needs `order: Strict`.
	Return Return `json:"return,omitempty"`
}

// MakeRoom makes a pod preempt pods of low priority outside the burst pools before it bursts.
type MakeRoom struct {
	// BelowPriority is the priority below which pods are preempted. Pods of such a priority burst only with the
	// annotation `poolpriority.dev/burst: BelowPriority`. -2147483648 turns this off, because no pod has a lower
	// priority.
	BelowPriority *int32 `json:"belowPriority,omitempty"`
}

// WhileGrowing sets whether a pod waits for nodes that are on their way.
type WhileGrowing string

const (
	// Hold keeps the gate closed while nodes are on their way.
	Hold WhileGrowing = "Hold"
	// Overflow opens the gate for pods that have no room on the nodes that are on their way.
	Overflow WhileGrowing = "Overflow"
)

// Platform is the service that runs the pods of a burst pool.
type Platform string

const (
	// PlatformACI is Azure Container Instances, behind AKS's virtual nodes.
	PlatformACI Platform = "AzureContainerInstances"
	// PlatformOther is any other virtual kubelet.
	PlatformOther Platform = "Other"
)

// Loss is a protection that pods may lose in a burst pool.
type Loss string

const (
	// LossNetworkPolicy is the loss of the NetworkPolicies that select the pod.
	LossNetworkPolicy Loss = "NetworkPolicy"
	// LossSecurityContext is the loss of the settings that restricted Pod Security requires.
	LossSecurityContext Loss = "SecurityContext"
	// LossSandbox is the loss of the sandbox of the pod's RuntimeClass.
	LossSandbox Loss = "Sandbox"
)

// BurstLimits are the budget of a burst pool, or of a namespace in a burst pool. A field that is not set limits
// nothing.
type BurstLimits struct {
	// Pods is the largest number of pods. 0 means no limit.
	Pods int32 `json:"pods,omitempty"`

	// CPU is the most CPU that the provider may bill for all pods' requests. On Azure Container Instances, a container
	// without a request counts as 1 CPU.
	CPU *resource.Quantity `json:"cpu,omitempty"`

	// Memory is the most memory that the provider may bill for all pods' requests. On Azure Container Instances, a
	// container without a request counts as 1.5 GB.
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// BurstCreates bounds how many pods a burst pool gets in a time. Pods of all schedulers count. The defaults for Azure
// Container Instances are what Azure allows by default (docs/aci.md).
type BurstCreates struct {
	// Per5Minutes is the most pods in any 5 minutes.
	Per5Minutes *int32 `json:"per5Minutes,omitempty"`

	// PerHour is the most pods in any hour.
	PerHour *int32 `json:"perHour,omitempty"`
}

// List returns the limits that are set, by resource. The pods' limit is the resource pods.
func (b *BurstLimits) List() corev1.ResourceList {
	limits := corev1.ResourceList{}
	if b == nil {
		return limits
	}
	for name, limit := range map[corev1.ResourceName]*resource.Quantity{
		corev1.ResourcePods: resource.NewQuantity(int64(b.Pods), resource.DecimalSI), corev1.ResourceCPU: b.CPU, corev1.ResourceMemory: b.Memory,
	} {
		if limit != nil && !limit.IsZero() {
			limits[name] = *limit
		}
	}
	return limits
}

// Return evicts a pod from a burst pool if a node outside of the burst pools has capacity for the pod, and from a regular
// pool if a node of a better pool has. Pods that have not started are evicted first, then the oldest pods. No nodes are
// ordered for evicted pods. A pod's controller must be a ReplicaSet, StatefulSet or ReplicationController, or the pod must
// have the annotation poolpriority.dev/return: Always. To find a node for a pod, the scheduler runs those of the profile's
// Filter plugins that are part of Kubernetes.
type Return struct {
	// Enabled turns the return of pods on.
	Enabled bool `json:"enabled,omitempty"`

	// StableFor is how long VMs must have had capacity for a pod before the pod is evicted.
	StableFor *metav1.Duration `json:"stableFor,omitempty"`

	// MinAge is how long ago a pod must have been created before it is evicted. The default is 10m in regular pools, so
	// that pods do not return at once to spot VMs that were evicted. It is 0 in burst pools.
	MinAge *metav1.Duration `json:"minAge,omitempty"`

	// EvictionsPerMinute is the maximum number of evictions from the pool in a minute, evenly spread.
	EvictionsPerMinute int32 `json:"evictionsPerMinute,omitempty"`

	// PerWorkload is how many evicted pods of a workload may be without a ready replacement at a time.
	PerWorkload int32 `json:"perWorkload,omitempty"`
}

// Capacity sets how the states of regular pools are computed, and how long the gate holds pods.
type Capacity struct {
	// ClusterAutoscalerStatus is the ConfigMap, as NAMESPACE/NAME, that the cluster autoscaler writes.
	ClusterAutoscalerStatus string `json:"clusterAutoscalerStatus,omitempty"`

	// KarpenterLease is the Lease, as NAMESPACE/NAME, that Karpenter renews. Without this Lease, or without the right to
	// read it, a dead Karpenter is not noticed.
	KarpenterLease string `json:"karpenterLease,omitempty"`

	// StaleAfter is how long the autoscaler's status may stay unchanged before the pools in the status are Unknown, and
	// how long Karpenter's Lease may stay unchanged before its NodePools are Unknown. The cluster autoscaler writes the
	// status every 10 s or --scan-interval; three such times are the minimum. Karpenter renews the Lease every 2 s.
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`

	// UnknownGrace is how long an Unknown node group keeps the gate closed before the group counts as Full. While a
	// node of the group is starting, the gate stays closed.
	UnknownGrace *metav1.Duration `json:"unknownGrace,omitempty"`

	// ProvisionGrace is how long ordered nodes of a node group may take to become usable. The time starts again when the
	// group's size in the autoscaler's status changes. The default is that of the autoscaler's `--max-node-provision-time`.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`

	// BackoffGrace is how long a node group is in backoff, or all launches of a NodePool fail, before the group counts
	// as Full.
	BackoffGrace *metav1.Duration `json:"backoffGrace,omitempty"`

	// DeclineGrace is how long a pod must be unschedulable before a node group that can grow counts as declining the
	// pod. The cluster autoscaler must also complete four loops. Karpenter must also write that it cannot place the
	// pod, or 5 min must pass. A static pool declines the pod after the longer of `provisionGrace` and `declineGrace`.
	DeclineGrace *metav1.Duration `json:"declineGrace,omitempty"`

	// NewPodDelay is the value of the autoscaler's `--new-pod-scale-up-delay`. The autoscaler ignores pods younger than
	// this delay. A longer delay in a pod's annotation `cluster-autoscaler.kubernetes.io/pod-scale-up-delay` has
	// precedence.
	NewPodDelay *metav1.Duration `json:"newPodDelay,omitempty"`

	// HoldLimit is the longest time that a pod is held, whatever the states of the pools. The time starts when the pod
	// becomes unschedulable. 0 means no limit.
	HoldLimit *metav1.Duration `json:"holdLimit,omitempty"`
}
