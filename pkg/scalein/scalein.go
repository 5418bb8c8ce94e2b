// Package scalein computes pod deletion costs, so that a ReplicaSet deletes its pods in the last pool first. The
// package has no side effects.
package scalein

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// CostAnnotation is read by the ReplicaSet controller. Among pods that are equally ready, the controller deletes
	// the pods with the lowest cost first. A pod without the annotation has the cost 0.
	CostAnnotation = corev1.PodDeletionCost
	// PoolAnnotation names the pool that a pod is in.
	PoolAnnotation = "poolpriority.dev/pool"
	// OwnCostAnnotation is the cost that we wrote. If CostAnnotation has another value, another component wrote that
	// value.
	OwnCostAnnotation = "poolpriority.dev/pod-deletion-cost"

	// step is the distance between the costs of neighbouring pools.
	step = 1000
)

// Cost returns the deletion cost of a pod with these annotations on the node. In regular pools, the cost is positive, and
// the first pool in the pod's order has the highest cost. In burst pools, the cost is negative, and the last pool has the
// lowest cost. Therefore pods without a cost (0) are deleted after pods in burst pools, and before this scheduler's pods on
// VMs. On unlisted nodes, the cost is positive and lower than in the last regular pool. The scheduler does not use virtual
// kubelet nodes outside the burst pools. Pods there have the same cost as in the first burst pool.
func Cost(pools pool.List, node *corev1.Node, annotations map[string]string) int {
	switch rank, i := pools.RankOf(node); {
	case rank == pool.Excluded:
		return -step
	case i == pool.None:
		return step / 2
	case i < pools.Regular():
		order, _ := pools.OrderOf(annotations)
		return step * (pools.Regular() - int(order.PlaceOf(rank)))
	default:
		return -step * (i - pools.Regular() + 1)
	}
}

// Annotations returns the annotations to change on a pod that is bound to the node. current are the annotations that the
// pod has. An annotation with an empty value must be removed. foreign is set if another component has changed the cost
// since we wrote it. A cost of another component is never overwritten.
func Annotations(pools pool.List, node *corev1.Node, current map[string]string) (wanted map[string]string, foreign bool) {
	wanted = map[string]string{}
	want := func(key, value string) {
		if current[key] != value {
			wanted[key] = value
		}
	}
	name := ""
	if rank, i := pools.RankOf(node); rank != pool.Excluded && i != pool.None {
		name = pools.At(i).Name
	}
	want(PoolAnnotation, name)
	cost, set := current[CostAnnotation]
	own, ours := current[OwnCostAnnotation]
	if ours && (!set || cost != own) {
		return wanted, true
	}
	if ours || !set {
		value := strconv.Itoa(Cost(pools, node, current))
		want(CostAnnotation, value)
		want(OwnCostAnnotation, value)
	}
	return wanted, false
}

// Undo returns those of our annotations that must be removed from a pod of another scheduler, with empty values. The
// cost is removed only if it still has the value that we wrote.
func Undo(current map[string]string) map[string]string {
	unwanted := map[string]string{}
	cost, set := current[CostAnnotation]
	if own, ours := current[OwnCostAnnotation]; ours && set && cost == own {
		unwanted[CostAnnotation] = ""
	}
	for _, key := range []string{OwnCostAnnotation, PoolAnnotation} {
		if _, ok := current[key]; ok {
			unwanted[key] = ""
		}
	}
	return unwanted
}
