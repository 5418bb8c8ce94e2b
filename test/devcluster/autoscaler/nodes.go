package autoscaler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ToBeDeletedTaint is the taint of nodes that the autoscaler is removing.
const ToBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// startupTaints are prefixes of taint keys. To the autoscaler, a node with such a taint has not started yet. Source:
// utils/taints/taints.go.
var startupTaints = []string{
	"startup-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/",
}

// Ready reports whether the node's condition Ready is True and no taint shows that the node is not ready. Source:
// utils/kubernetes/ready.go.
func Ready(node *corev1.Node) bool {
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeDiskPressure, corev1.TaintNodeNetworkUnavailable} {
		if HasTaint(node, taint) {
			return false
		}
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return i >= 0 && node.Status.Conditions[i].Status == corev1.ConditionTrue
}

// HasTaint reports whether the node has a taint with the key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// started reports whether the autoscaler counts the node as ready. A startup taint with a known prefix makes the node
// unready. Other taints do not.
func started(node *corev1.Node) bool {
	return Ready(node) && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return slices.ContainsFunc(startupTaints, func(prefix string) bool { return strings.HasPrefix(t.Key, prefix) })
	})
}
