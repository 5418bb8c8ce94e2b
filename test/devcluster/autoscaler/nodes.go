package autoscaler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ToBeDeletedTaint is on the nodes that the autoscaler is about to remove.
const ToBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// startupTaints are the prefixes of taints by which the autoscaler knows a node that has not started yet. Source:
// utils/taints/taints.go.
var startupTaints = []string{
	"startup-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/",
}

// Ready reports whether the node is ready and the taints that say otherwise are gone. Source:
// utils/kubernetes/ready.go, which looks at both.
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

// started reports whether the autoscaler takes the node for a ready one: startup taints that it knows by their names
// make it unready, any other taint does not.
func started(node *corev1.Node) bool {
	return Ready(node) && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return slices.ContainsFunc(startupTaints, func(prefix string) bool { return strings.HasPrefix(t.Key, prefix) })
	})
}
