// Package scalein computes deletion costs, so that a ReplicaSet deletes its pods in the reverse order of the pools. It
// is pure.
package scalein

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// CostAnnotation is read by the ReplicaSet controller. Of pods that are equally ready, it deletes those with the
	// lowest cost first. A pod without the annotation has the cost 0.
	CostAnnotation = corev1.PodDeletionCost
	// PoolAnnotation names the pool that a pod is in.
	PoolAnnotation = "poolpriority.dev/pool"
	// OwnCostAnnotation is the cost that we wrote. If the pod's cost differs, another component wrote it.
	OwnCostAnnotation = "poolpriority.dev/pod-deletion-cost"

	// step is the distance between the costs of neighbouring pools.
	step = 1000
)

// Cost returns the deletion cost of pods on nodes with these labels. In regular pools it is positive, and higher in
// better-ranked pools. In burst pools it is negative, and lower in worse-ranked pools. Pods without a cost (0) are thus
// deleted after the pods of burst pools and before our pods on VMs. On unlisted nodes the cost is lower than in the
// last regular pool. On a virtual kubelet in no burst pool, which the scheduler does not use, it is the cost of the
// first burst pool.
func Cost(pools pool.List, nodeLabels map[string]string) int {
	switch rank, i := pools.RankOf(nodeLabels); {
	case rank == pool.Excluded:
		return -step
	case i == pool.None:
		return step / 2
	case i < pools.Regular():
		return step * (pools.Regular() - i)
	default:
		return -step * (i - pools.Regular() + 1)
	}
}

// Annotations returns the annotations to change on a pod that is bound to a node with these labels. current are the
// annotations that the pod has. An empty value removes an annotation. foreign is set if another component has changed
// the cost since we wrote it. Such a cost stays, and so does a cost that the pod had before we wrote any.
func Annotations(pools pool.List, nodeLabels, current map[string]string) (wanted map[string]string, foreign bool) {
	wanted = map[string]string{}
	want := func(key, value string) {
		if current[key] != value {
			wanted[key] = value
		}
	}
	name := ""
	if rank, i := pools.RankOf(nodeLabels); rank != pool.Excluded && i != pool.None {
		name = pools.At(i).Name
	}
	want(PoolAnnotation, name)
	cost, set := current[CostAnnotation]
	own, ours := current[OwnCostAnnotation]
	if ours && (!set || cost != own) {
		return wanted, true
	}
	if ours || !set {
		value := strconv.Itoa(Cost(pools, nodeLabels))
		want(CostAnnotation, value)
		want(OwnCostAnnotation, value)
	}
	return wanted, false
}

// Undo returns our annotations that must be removed from a pod of another scheduler. Their values are empty, as in
// Annotations. A cost is ours if it has the value that we wrote. A different value stays.
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
