package capacity

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

var reasonStarting = Reason{Code: "NodesStarting", Sentence: "nodes of the pool exist and are not ready yet"}

// WithStarting returns the judgement, corrected for nodes that have just come: a pool that is Full, or may be for some
// pods, with nodes that are not ready is Growing, for at most the grace after each came. That a node became ready before and
// is so no longer does not matter within the grace: it may come back.
func (j Judgement) WithStarting(nodes []*corev1.Node, grace time.Duration, now time.Time) Judgement {
	if j.State != Full && j.Remaining == nil {
		return j
	}
	starting := 0
	var until time.Time
	for _, node := range nodes {
		if late := node.CreationTimestamp.Add(grace); IsStarting(node) && now.Before(late) {
			starting++
			until = Earliest(until, late)
		}
	}
	if starting == 0 {
		return j
	}
	j.State, j.Reason = Growing, reasonStarting
	j.Reason.Detail = fmt.Sprintf("%d of %d nodes", starting, len(nodes))
	j.Until = Earliest(j.Until, until)
	return j
}

// startupTaints keep pods out of a node until something has been set up on it; with a trailing slash, they are prefixes.
var startupTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, "node.cloudprovider.kubernetes.io/uninitialized",
	"startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/",
	"node.cilium.io/agent-not-ready", "karpenter.sh/unregistered",
}

// KarpenterNodePoolLabel is on every node of Karpenter's, with the name of its NodePool.
const KarpenterNodePoolLabel = "karpenter.sh/nodepool"

// karpenterInitialized is the label that Karpenter gives its nodes when their startup taints are gone and their devices are there.
const karpenterInitialized = "karpenter.sh/initialized"

// IsStarting reports whether pods are kept out of the node because it is not ready, or not set up.
func IsStarting(node *corev1.Node) bool {
	ready := false
	for _, c := range node.Status.Conditions {
		ready = ready || (c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue)
	}
	for _, taint := range node.Spec.Taints {
		if matches(taint.Key, startupTaints) {
			return true
		}
	}
	_, karpenters := node.Labels[KarpenterNodePoolLabel]
	return !ready || karpenters && node.Labels[karpenterInitialized] != "true"
}
