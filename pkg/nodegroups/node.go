package nodegroups

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// passingTaint is a temporary taint that a controller, the cloud or an autoscaler puts on a node. It is no part of the
// node's template.
type passingTaint struct {
	key     string // a key, a prefix of keys that ends in a slash, or a suffix of keys that begins with a slash
	startup bool   // it keeps pods out of a new node until something has been set up on it
}

// passingTaints are looked up in this order. A temporary taint that is missing here counts as lasting: while all nodes
// of a pool have it, the pool seems unable to run pods without the toleration, and these pods burst.
var passingTaints = []passingTaint{
	// Kubernetes: conditions, cordons, and nodes that the cloud does not know yet.
	{corev1.TaintNodeNotReady, true},
	{corev1.TaintNodeUnreachable, true},
	{corev1.TaintNodeNetworkUnavailable, true},
	{"node.kubernetes.io/", false},
	{"node.cloudprovider.kubernetes.io/uninitialized", true},
	{"node.cloudprovider.kubernetes.io/", false},
	{"node.cluster.x-k8s.io/uninitialized", true}, // Cluster API
	{"node.cluster.x-k8s.io/", false},
	// Autoscalers.
	{"startup-taint.cluster-autoscaler.kubernetes.io/", true},
	{"ignore-taint.cluster-autoscaler.kubernetes.io/", true},
	{"status-taint.cluster-autoscaler.kubernetes.io/", false},
	{toBeDeletedTaint, false},
	{"DeletionCandidateOfClusterAutoscaler", false},
	{"karpenter.sh/unregistered", true},
	{"karpenter.sh/", false},
	// Agents that are not ready on the node: Cilium, and CSI drivers (disk.csi.azure.com/agent-not-ready; AWS's, too).
	{"/agent-not-ready", true},
	// Node drains: AKS's auto-drain and auto-repair (the older key first), AWS's node termination handler, medik8s.
	{"remediator.aks.microsoft.com/", false},
	{"remediator.kubernetes.azure.com/", false},
	{"aws-node-termination-handler/", false},
	{"medik8s.io/", false},
}

// stayingTaints are taints that mark a node's purpose. They are never startup taints. An entry that ends in a slash is
// a prefix.
var stayingTaints = []string{
	"CriticalAddonsOnly",
	"kubernetes.azure.com/scalesetpriority",
	"node-role.kubernetes.io/",
	"nvidia.com/gpu",
	"amd.com/gpu",
}

// matches reports whether the entry of one of these tables names the key.
func matches(entry, key string) bool {
	return key == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(key, entry) || strings.HasPrefix(entry, "/") && strings.HasSuffix(key, entry)
}

// stays reports whether the taint is one of stayingTaints.
func stays(taint *corev1.Taint) bool {
	return slices.ContainsFunc(stayingTaints, func(entry string) bool { return matches(entry, taint.Key) })
}

// passing returns the entry of passingTaints that matches the key, or nil if a taint with the key lasts.
func passing(key string) *passingTaint {
	if i := slices.IndexFunc(passingTaints, func(p passingTaint) bool { return matches(p.key, key) }); i >= 0 {
		return &passingTaints[i]
	}
	return nil
}

// LastingTaints returns the taints that belong to the node's template and keep pods out. It leaves out cordons,
// conditions, startup taints with known keys, and marks of autoscalers.
func LastingTaints(taints []corev1.Taint) []corev1.Taint {
	var lasting []corev1.Taint
	for i := range taints {
		if lasts(&taints[i]) {
			lasting = append(lasting, taints[i])
		}
	}
	return lasting
}

func lasts(taint *corev1.Taint) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule && passing(taint.Key) == nil
}

// IsTainted reports whether the node has a lasting taint, by the taint's key and effect.
func IsTainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return lasts(&t) })
}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

// placeLabels are labels that differ between nodes of one template. Their values on a new node cannot be predicted.
var placeLabels = map[string]bool{
	corev1.LabelHostname:                      true,
	corev1.LabelTopologyZone:                  true,
	corev1.LabelFailureDomainBetaZone:         true,
	"topology.disk.csi.azure.com/zone":        true,
	"kubernetes.azure.com/nodenetwork-id":     true,
	"kubernetes.azure.com/node-image-version": true,
}

// IsPlaceLabel reports whether the label depends on a node's place or name, rather than on its template.
func IsPlaceLabel(key string) bool { return placeLabels[key] }

// ready returns the node's condition Ready, or nil if the node does not have it yet.
func ready(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

// IsReady reports whether the node's condition Ready is True. A node without the condition is not ready.
func IsReady(node *corev1.Node) bool {
	c := ready(node)
	return c != nil && c.Status == corev1.ConditionTrue
}

// readySince returns when the node's condition Ready last changed; zero if the node does not have it.
func readySince(node *corev1.Node) time.Time {
	if c := ready(node); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// KarpenterNodePoolLabel is the label of Karpenter's nodes that holds the name of their NodePool.
const KarpenterNodePoolLabel = "karpenter.sh/nodepool"

// karpenterInitialized is the label that Karpenter gives its nodes when their startup taints are gone and their devices
// are available.
const karpenterInitialized = "karpenter.sh/initialized"

// IsStarting reports whether pods are kept out of the node because it is not ready, or not set up.
func IsStarting(node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		if p := passing(node.Spec.Taints[i].Key); p != nil && p.startup {
			return true
		}
	}
	_, karpenters := node.Labels[KarpenterNodePoolLabel]
	return !IsReady(node) || karpenters && node.Labels[karpenterInitialized] != "true"
}

// toBeDeletedTaint is the taint of nodes that the cluster autoscaler is removing.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// disruptedTaint is the taint of nodes that Karpenter is removing and no longer counts.
const disruptedTaint = "karpenter.sh/disrupted"

// IsLeaving reports whether the node is being removed.
func IsLeaving(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeletedTaint || t.Key == disruptedTaint })
}

// Changed reports whether the node changed in a way that affects the view. Heartbeats do not.
func Changed(oldNode, newNode *corev1.Node) bool {
	return IsStarting(oldNode) != IsStarting(newNode) || IsLeaving(oldNode) != IsLeaving(newNode) || !maps.Equal(oldNode.Labels, newNode.Labels) ||
		!slices.EqualFunc(oldNode.Spec.Taints, newNode.Spec.Taints, sameTaint) ||
		!reflect.DeepEqual(oldNode.Status.Allocatable, newNode.Status.Allocatable)
}
