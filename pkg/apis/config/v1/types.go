package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Order says how the pools' ranks decide where a pod goes.
type Order string

const (
	// OrderStrict never places a pod in a pool while a feasible node exists in a better-ranked one.
	OrderStrict Order = "Strict"
	// OrderPreferred makes the rank a score from 0 to 100 that is weighed against the other score plugins.
	OrderPreferred Order = "Preferred"
)

// Mode says whether the gate acts.
type Mode string

const (
	// ModeEnforce holds pods back while the gate is closed for them.
	ModeEnforce Mode = "Enforce"
	// ModeObserve decides, logs and counts, and holds nothing back: the nodes of burst pools are then the last of the
	// order, for pods that tolerate their taints by themselves. No gate taint is kept, and pods of other schedulers are not given
	// a deletion cost.
	ModeObserve Mode = "Observe"
)

// PoolPriorityArgs holds the arguments of the PoolPriority plugin.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type PoolPriorityArgs struct {
	metav1.TypeMeta `json:",inline"`

	// Order is Strict (default) or Preferred.
	Order Order `json:"order,omitempty"`

	// Mode is Enforce (default) or Observe.
	Mode Mode `json:"mode,omitempty"`

	// Pools is the ordered list, most preferred first. Burst pools come last. A node belongs to the first pool whose
	// selector matches it; a node in no pool ranks after the regular pools and before the burst pools.
	Pools []Pool `json:"pools"`

	// Capacity says how regular pools are judged. It matters only where a burst pool is in the list.
	Capacity Capacity `json:"capacity,omitempty"`

	// ScaleIn says how a ReplicaSet gives up its pods.
	ScaleIn ScaleIn `json:"scaleIn,omitempty"`

	// GateTaint says whether the controller keeps the gate taint (GateTaintKey) on the nodes of burst pools, which hides
	// them from autoscalers and from other schedulers. Default true. false is safe only where no pod tolerates the burst
	// nodes by itself.
	GateTaint *bool `json:"gateTaint,omitempty"`

	// StatusConfigMap is the namespace/name of the ConfigMap in which the leader publishes the pools' states, for tools and
	// for its successor. It matters only where a burst pool is in the list.
	// Default: pool-priority-status in the namespace that the scheduler runs in.
	StatusConfigMap string `json:"statusConfigMap,omitempty"`

	// Installation is the name of the installation, which tells its gate taint from others'. It is not written here: whoever reads the
	// configuration fills it in by InstallationOf.
	Installation string `json:"-"`
}

// GateTaintKey is the key of the taint that hides burst nodes, with effect NoSchedule and the name of the installation as its value. No pod
// template tolerates it.
const GateTaintKey = "poolpriority.dev/gate"

// ScaleIn says how a ReplicaSet gives up its pods.
type ScaleIn struct {
	// PodDeletionCost has pods bound with the annotation controller.kubernetes.io/pod-deletion-cost, so that a ReplicaSet gives
	// up those in burst pools first, then the others in the reverse of the pools' order; and with poolpriority.dev/pool, the pool's
	// name. A cost that a pod has already is kept. Default true.
	PodDeletionCost *bool `json:"podDeletionCost,omitempty"`

	// Others has pods of listed pools that another scheduler bound given a deletion cost, too, but for those of kube-system. Without it,
	// what such pods were given is taken off. Default false.
	Others bool `json:"others,omitempty"`

	// HoldSurge keeps the new pods of a Deployment's rolling update out of burst pools while the pods that they replace make room
	// for them. A new pod waits for old pods that are ending, until the end of their grace period. It waits for old pods that
	// are not ending yet, too, as long as the rollout goes on without it, for at most 5 minutes or half of
	// progressDeadlineSeconds. Default true.
	HoldSurge *bool `json:"holdSurge,omitempty"`
}

// Pool is one entry of the ordered list: a regular pool, or a burst pool if Burst is set.
type Pool struct {
	// Name identifies the pool in logs, metrics and messages. A DNS label (at most 63 characters), unique in the list.
	Name string `json:"name"`

	// NodeSelector selects the pool's nodes by label. It must not be empty.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`

	// ClusterAutoscaler names the cluster autoscaler's status as the source of the pool's maximum.
	// A regular pool before a burst pool has exactly one source: ClusterAutoscaler, Karpenter, Static or Fixed.
	ClusterAutoscaler *ClusterAutoscalerSource `json:"clusterAutoscaler,omitempty"`

	// Karpenter names a NodePool of Karpenter or of AKS node auto-provisioning as the source of the pool's maximum.
	Karpenter *KarpenterSource `json:"karpenter,omitempty"`

	// Static names a number of nodes as the pool's maximum.
	Static *StaticSource `json:"static,omitempty"`

	// Fixed says that the pool never grows: it is Full as it stands.
	Fixed *FixedSource `json:"fixed,omitempty"`

	// NodeTemplate describes a node of this pool for the time while a node group of it has none and none has been seen. Without it, an empty
	// group may hold any pod that its NodeSelector does not rule out.
	NodeTemplate *NodeTemplate `json:"nodeTemplate,omitempty"`

	// Capacity has graces for this pool that differ from those for all: a spot pool may be given up sooner.
	Capacity *PoolCapacity `json:"capacity,omitempty"`

	// Burst makes this a burst pool: gated, and opened only when the regular pools can grow no more.
	Burst *Burst `json:"burst,omitempty"`
}

// ClusterAutoscalerSource reads a pool's maximum from the cluster autoscaler's status ConfigMap.
type ClusterAutoscalerSource struct {
	// NodeGroups are patterns for the names of the pool's node groups, as path.Match reads them: each must match a
	// whole name ("aks-userpool-*-vmss"). Default: AKS's names for the pool's agentpool label, taken from NodeSelector
	// and from the pool's nodes: aks-<agentpool>-<digits>-vmss and <agentpool>/<sku>.
	NodeGroups []string `json:"nodeGroups,omitempty"`

	// NodeTemplates describe the nodes of some of the pool's node groups, where the groups differ. They go before the pool's NodeTemplate.
	NodeTemplates []NodeGroupTemplate `json:"nodeTemplates,omitempty"`
}

// NodeGroupTemplate describes a node that a node group would get if it grew.
type NodeGroupTemplate struct {
	// NodeGroup is a pattern for the names of node groups, as path.Match reads it. The first template whose pattern matches counts.
	NodeGroup string `json:"nodeGroup"`

	// NodeTemplate describes the node.
	NodeTemplate NodeTemplate `json:"nodeTemplate"`
}

// PoolCapacity has graces for one pool. What is not set is as for all pools.
type PoolCapacity struct {
	// ProvisionGrace, BackoffGrace and DeclineGrace are as in Capacity. Of pools that share a NodePool, the longest of the first two count.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`
	BackoffGrace   *metav1.Duration `json:"backoffGrace,omitempty"`
	DeclineGrace   *metav1.Duration `json:"declineGrace,omitempty"`
}

// KarpenterSource reads a pool's maximum from a NodePool (karpenter.sh/v1): its limits against its status.resources. A
// NodePool without limits is never Full.
type KarpenterSource struct {
	// NodePool is the NodePool's name.
	NodePool string `json:"nodePool"`
}

// StaticSource states a pool's maximum.
type StaticSource struct {
	// MaxNodes is the number of nodes at which the pool is Full, at least 1.
	MaxNodes int32 `json:"maxNodes"`
}

// FixedSource is the source of a pool that never grows.
type FixedSource struct{}

// NodeTemplate describes a node that a pool would get if it grew.
type NodeTemplate struct {
	// Labels are all labels of the node that pods may ask for; those of the pool's NodeSelector.matchLabels and
	// kubernetes.io/os=linux, kubernetes.io/arch=amd64 are added where absent.
	Labels map[string]string `json:"labels,omitempty"`

	// Taints are the node's lasting taints.
	Taints []corev1.Taint `json:"taints,omitempty"`

	// Allocatable is what the node offers to pods. Of cpu, memory and ephemeral-storage, what is not listed is not
	// judged; of anything else, what is not listed is not there. If it is empty, size is not judged at all.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Burst makes a pool a burst pool.
type Burst struct {
	// Tolerations are given to pods for this pool's nodes: taints that they match are looked past for pods that the
	// gate lets in. None may match NoExecute: the kubelet and the taint manager would not look past it.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// MaxPods is the budget: how many pods may be on the pool's nodes before no more are let in, whoever put them
	// there. 0, the default, is no limit. It is the short form of Limits.Pods: only one of the two may be set.
	MaxPods int32 `json:"maxPods,omitempty"`

	// Limits are the budget by pods and by what the provider bills.
	Limits *BurstLimits `json:"limits,omitempty"`

	// NamespaceSelector says, by the labels of their namespace, whose pods may burst. Default: all.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Platform is what runs the pods: AzureContainerInstances (default) or Other. It says which pods cannot run there.
	Platform Platform `json:"platform,omitempty"`

	// Largest is the size of the largest pod that the provider runs: cpu and memory, of which what is not listed is not judged. Default: none
	// is judged.
	Largest corev1.ResourceList `json:"largest,omitempty"`

	// StartWithin is how long after its binding a pod may take to start before it counts as lost and is taken back; for each further pod of the same
	// owner twice as long, for large images. 0 takes none back that the provider has not refused. Otherwise at least 1 s; default 15m.
	StartWithin *metav1.Duration `json:"startWithin,omitempty"`

	// WaitLimit opens the pool for a pod that has been unschedulable this long, whatever the autoscaler says. 0, the
	// default, waits as long as it takes; otherwise at least 1 s.
	WaitLimit metav1.Duration `json:"waitLimit,omitempty"`

	// Return has pods brought back from the pool.
	Return Return `json:"return,omitempty"`
}

// Platform is what runs the pods of a burst pool.
type Platform string

const (
	// PlatformACI is Azure Container Instances, behind AKS's virtual nodes.
	PlatformACI Platform = "AzureContainerInstances"
	// PlatformOther is any other virtual kubelet. Nothing is known of it but that it runs no pods of DaemonSets and no static pods.
	PlatformOther Platform = "Other"
)

// BurstLimits are a burst pool's budget: what may be on its nodes before no more is let in, whoever put it there. What is not set is not limited.
// Pods that have ended do not count.
type BurstLimits struct {
	// Pods is a number of pods, at least 1.
	Pods int32 `json:"pods,omitempty"`
	// CPU and Memory are sums of what the provider bills: what the containers request, and on Azure Container Instances 1 CPU and 1.5 GB for
	// a container that requests none.
	CPU    *resource.Quantity `json:"cpu,omitempty"`
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Budget returns the pool's limits, whichever way they were written. What is not set is not limited.
func (b *Burst) Budget() BurstLimits {
	var limits BurstLimits
	if b.Limits != nil {
		limits = *b.Limits
	}
	if limits.Pods == 0 {
		limits.Pods = b.MaxPods
	}
	return limits
}

// Return has pods of a burst pool evicted, oldest first, for which there is room on nodes that exist outside of burst pools.
// PodDisruptionBudgets hold, and no node is ordered for it. Only pods of ReplicaSets, StatefulSets and ReplicationControllers are
// evicted, and those of other controllers with the annotation poolpriority.dev/return: Always. It needs order: Strict, and looks by
// the profile's filters, of which those that are not Kubernetes' own are left out.
type Return struct {
	// Enabled switches it on. Default false.
	Enabled bool `json:"enabled,omitempty"`

	// StableFor is for how long there must have been room. At least 1 s; default 5m.
	StableFor *metav1.Duration `json:"stableFor,omitempty"`

	// EvictionsPerMinute is how many pods of the pool are evicted in a minute, evenly spread. 1 to 600; default 2.
	EvictionsPerMinute int32 `json:"evictionsPerMinute,omitempty"`

	// PerWorkload is how many pods of one workload may be on their way at a time: evicted, and without a replacement that is
	// ready. At least 1; default 1.
	PerWorkload int32 `json:"perWorkload,omitempty"`
}

// Capacity says how regular pools are judged.
type Capacity struct {
	// ClusterAutoscalerStatus is the namespace/name of the ConfigMap that the cluster autoscaler writes.
	// Default: kube-system/cluster-autoscaler-status.
	ClusterAutoscalerStatus string `json:"clusterAutoscalerStatus,omitempty"`

	// StaleAfter is how long the status may go unchanged before the autoscaler counts as silent and the pool as
	// Unknown. The autoscaler writes every 10 s or so. At least 30 s; default 3m.
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`

	// UnknownGrace is how long an Unknown node group keeps the gate closed before it counts as Full. Default 15m.
	UnknownGrace *metav1.Duration `json:"unknownGrace,omitempty"`

	// ProvisionGrace is how long nodes that were ordered and are missing count as on their way, measured from the
	// last order or arrival. Default 15m, the autoscaler's own --max-node-provision-time.
	ProvisionGrace *metav1.Duration `json:"provisionGrace,omitempty"`

	// BackoffGrace is how long a node group must have been in back-off to count as Full, or the launches of a Karpenter NodePool must have
	// failed, none succeeding. Default 2m.
	BackoffGrace *metav1.Duration `json:"backoffGrace,omitempty"`

	// DeclineGrace is how long a pod must have been unschedulable before a node group that can grow counts as declining it. Besides, it must have
	// been there for four whole loops of the autoscaler in which no group rose or began to fail. The time begins anew when a group that the pod
	// could use rises, gets nodes, is given up or can grow again. At least 1 s; default 1m. A static pool declines after its ProvisionGrace.
	DeclineGrace *metav1.Duration `json:"declineGrace,omitempty"`

	// NewPodDelay is the cluster autoscaler's --new-pod-scale-up-delay: pods that are younger are not looked at. Default 0s; at most 1h. A
	// pod's annotation cluster-autoscaler.kubernetes.io/pod-scale-up-delay counts if it is longer.
	NewPodDelay *metav1.Duration `json:"newPodDelay,omitempty"`

	// HoldLimit is the longest time for which a pod is held, whatever is said of the pools: a net under an autoscaler that crashes again
	// and again, a maximum that is never reached, pools that fail in turn. It is measured from when the pod became unschedulable or, if that
	// is later, from when a node came that it might use, and is at most twice as long in all. 0 is no limit; otherwise at least 1 s.
	// Default 1h. (Burst.WaitLimit is for those who want to burst early.)
	HoldLimit *metav1.Duration `json:"holdLimit,omitempty"`
}
