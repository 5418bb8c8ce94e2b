package nodegroups

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// passingTaint is a taint that comes and goes on a node that stays the kind of node it is: controllers, the cloud and
// the autoscalers put it there for a time.
type passingTaint struct {
	key     string // or, with a slash at its end, the prefix of keys; with one at its beginning, what they end with
	startup bool   // it keeps pods out of a new node until something has been set up on it
}

// passingTaints are looked up in this order. A taint that is not among them and passes all the same makes a pool look
// as if it could not run a pod for as long as all its nodes have it, and bursts the pod.
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
	// What keeps pods out until an agent of the node's runs: Cilium, and CSI drivers
	// (disk.csi.azure.com/agent-not-ready; AWS's, too).
	{"/agent-not-ready", true},
	// What drains nodes: AKS's auto-drain and auto-repair (the older key first), AWS's node termination handler,
	// medik8s.
	{"remediator.aks.microsoft.com/", false},
	{"remediator.kubernetes.azure.com/", false},
	{"aws-node-termination-handler/", false},
	{"medik8s.io/", false},
}

// stayingTaints are taints for a node's purpose: they are never startup taints. An entry with a slash at its end is a
// prefix.
var stayingTaints = []string{
	"CriticalAddonsOnly",
	"kubernetes.azure.com/scalesetpriority",
	"node-role.kubernetes.io/",
	"nvidia.com/gpu",
	"amd.com/gpu",
}

// matches reports whether the key is what the entry of a table names.
func matches(entry, key string) bool {
	return key == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(key, entry) || strings.HasPrefix(entry, "/") && strings.HasSuffix(key, entry)
}

// stays reports whether the taint is one of stayingTaints.
func stays(taint *corev1.Taint) bool {
	return slices.ContainsFunc(stayingTaints, func(entry string) bool { return matches(entry, taint.Key) })
}

// passing returns the entry of a passing taint with the key, or nil if the taint lasts.
func passing(key string) *passingTaint {
	if i := slices.IndexFunc(passingTaints, func(p passingTaint) bool { return matches(p.key, key) }); i >= 0 {
		return &passingTaints[i]
	}
	return nil
}

// LastingTaints returns the taints that keep pods out of nodes of this kind for good: cordons, conditions, startup
// taints and an autoscaler's marks are left out.
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

// IsTainted reports whether the node has a lasting taint, by its key.
func IsTainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return lasts(&t) })
}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

// placeLabels are labels that differ between nodes of one template: a new node's value cannot be predicted.
var placeLabels = map[string]bool{
	corev1.LabelHostname:                      true,
	corev1.LabelTopologyZone:                  true,
	corev1.LabelFailureDomainBetaZone:         true,
	"topology.disk.csi.azure.com/zone":        true,
	"kubernetes.azure.com/nodenetwork-id":     true,
	"kubernetes.azure.com/node-image-version": true,
}

// IsPlaceLabel reports whether the label is for a node's place or name, rather than for its template.
func IsPlaceLabel(key string) bool { return placeLabels[key] }

// ready returns the node's condition Ready, or nil if nothing has reported it yet.
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

// readySince returns when the node's condition Ready last changed; zero if it has none.
func readySince(node *corev1.Node) time.Time {
	if c := ready(node); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// KarpenterNodePoolLabel is on every node of Karpenter's, with the name of its NodePool.
const KarpenterNodePoolLabel = "karpenter.sh/nodepool"

// karpenterInitialized is the label that Karpenter gives its nodes when their startup taints are gone and their devices
// are there.
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

// toBeDeletedTaint is on nodes that the cluster autoscaler removes.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// disruptedTaint is on nodes that Karpenter removes and no longer counts.
const disruptedTaint = "karpenter.sh/disrupted"

// IsLeaving reports whether the node is being taken away.
func IsLeaving(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeletedTaint || t.Key == disruptedTaint })
}

// Changed reports whether the node changed in what capacity is judged by: heartbeats are not.
func Changed(oldNode, newNode *corev1.Node) bool {
	return IsStarting(oldNode) != IsStarting(newNode) || IsLeaving(oldNode) != IsLeaving(newNode) || !maps.Equal(oldNode.Labels, newNode.Labels) ||
		!slices.EqualFunc(oldNode.Spec.Taints, newNode.Spec.Taints, sameTaint) ||
		!reflect.DeepEqual(oldNode.Status.Allocatable, newNode.Status.Allocatable)
}
