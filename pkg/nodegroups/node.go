package nodegroups

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// passingTaint is a temporary taint that a controller, the cloud or an autoscaler puts on a node. Node templates leave
// it out.
type passingTaint struct {
	key     string // a taint key; with a slash at its end it is a prefix of keys, and with a slash at its start a suffix
	startup bool   // the taint keeps pods off a new node until the node has been set up
}

// passingTaints lists the known temporary taints. The first entry that matches a key applies. A temporary taint that is
// missing here counts as lasting. While all nodes of a pool have this taint, pods that do not tolerate it burst.
var passingTaints = []passingTaint{
	// Taints of Kubernetes for node conditions, cordons, and nodes that the cloud provider has not initialized yet.
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
	// Taints of Cilium and of CSI drivers while their agent on the node is not ready
	// (disk.csi.azure.com/agent-not-ready).
	{"/agent-not-ready", true},
	// Taints of node drains by AKS's auto-drain and auto-repair (the older key first), AWS's node termination handler,
	// and medik8s.
	{"remediator.aks.microsoft.com/", false},
	{"remediator.kubernetes.azure.com/", false},
	{"aws-node-termination-handler/", false},
	{"medik8s.io/", false},
}

// stayingTaints are taints that mark a node's purpose. They are never startup taints. An entry that ends in a slash is
// a prefix of taint keys.
var stayingTaints = []string{
	"CriticalAddonsOnly",
	"kubernetes.azure.com/scalesetpriority",
	"autoscaling.azure.com/", // separates the nodes of AKS's two autoscalers
	"node-role.kubernetes.io/",
	"nvidia.com/gpu",
	"amd.com/gpu",
}

// matches reports whether an entry of passingTaints or stayingTaints matches the taint key.
func matches(entry, key string) bool {
	return key == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(key, entry) || strings.HasPrefix(entry, "/") && strings.HasSuffix(key, entry)
}

// stays reports whether the taint is one of stayingTaints.
func stays(taint *corev1.Taint) bool {
	return slices.ContainsFunc(stayingTaints, func(entry string) bool { return matches(entry, taint.Key) })
}

// passing returns the first entry of passingTaints that matches the key, or nil if no entry matches.
func passing(key string) *passingTaint {
	if i := slices.IndexFunc(passingTaints, func(p passingTaint) bool { return matches(p.key, key) }); i >= 0 {
		return &passingTaints[i]
	}
	return nil
}

// LastingTaints returns the taints that belong to the node's template and keep pods out. It leaves out taints with
// effect PreferNoSchedule and all passingTaints, such as cordons, node conditions, autoscalers' marks, and startup
// taints with known keys.
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

// IsTainted reports whether the node has a lasting taint (LastingTaints).
func IsTainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return lasts(&t) })
}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

// placeLabels are labels whose values differ between nodes of one template. Their values on a new node are not
// predictable.
var placeLabels = map[string]bool{
	corev1.LabelHostname:                      true,
	corev1.LabelTopologyZone:                  true,
	corev1.LabelFailureDomainBetaZone:         true,
	"topology.disk.csi.azure.com/zone":        true,
	"kubernetes.azure.com/nodenetwork-id":     true,
	"kubernetes.azure.com/node-image-version": true,
}

// IsPlaceLabel reports whether the label's value depends on the node's place or name, not on its template.
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

// IsStarting reports whether the node is not usable yet. Such a node is not ready, has a startup taint with a known
// key, or is a Karpenter node that Karpenter has not initialized.
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

// disruptedTaint is the taint of nodes that Karpenter is removing. Karpenter no longer counts these nodes in the
// NodePool's status.
const disruptedTaint = "karpenter.sh/disrupted"

// MarkedAt reports whether the cluster autoscaler has marked the node for removal, and when, by the autoscaler's clock.
// The time is zero if the mark does not have it.
func MarkedAt(node *corev1.Node) (at time.Time, marked bool) {
	i := slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeletedTaint })
	if i < 0 {
		return time.Time{}, false
	}
	if seconds, err := strconv.ParseInt(node.Spec.Taints[i].Value, 10, 64); err == nil && seconds > 0 {
		at = time.Unix(seconds, 0)
	}
	return at, true
}

// IsLeaving reports whether the node is being removed.
func IsLeaving(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeletedTaint || t.Key == disruptedTaint })
}

// MayGo reports whether the node is being removed, or has a taint that passes (passingTaints), for example because it is
// drained, or because an autoscaler is about to remove it.
func MayGo(node *corev1.Node) bool {
	return IsLeaving(node) || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return passing(t.Key) != nil })
}

// Suits reports whether the node may accept pods with these requests, constraints and tolerations, if no other pod uses
// the node.
func Suits(node *corev1.Node, requests corev1.ResourceList, constraints nodeaffinity.RequiredNodeAffinity, tolerations []corev1.Toleration) bool {
	for name, quantity := range requests {
		if allocatable := node.Status.Allocatable[name]; quantity.Cmp(allocatable) > 0 {
			return false
		}
	}
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		taints = append(slices.Clip(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, tolerations,
		func(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }, true); untolerated {
		return false
	}
	match, err := constraints.Match(node)
	return match || err != nil
}

// Changed reports whether the node changed in a way that affects the view. Heartbeats do not affect the view.
func Changed(oldNode, newNode *corev1.Node) bool {
	return IsStarting(oldNode) != IsStarting(newNode) || IsLeaving(oldNode) != IsLeaving(newNode) || !maps.Equal(oldNode.Labels, newNode.Labels) ||
		!slices.EqualFunc(oldNode.Spec.Taints, newNode.Spec.Taints, sameTaint) ||
		!reflect.DeepEqual(oldNode.Status.Allocatable, newNode.Status.Allocatable)
}
