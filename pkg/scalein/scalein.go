// Package scalein computes deletion costs, so that a ReplicaSet deletes its pods in the reverse order of the pools. It
// is pure.
package scalein

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// CostAnnotation is read by the ReplicaSet controller: of pods that are as ready as one another, it deletes those
	// with the lowest cost first. A pod without it has the cost 0.
	CostAnnotation = corev1.PodDeletionCost
	// PoolAnnotation names the pool that a pod is in.
	PoolAnnotation = "poolpriority.dev/pool"
	// OwnCostAnnotation is the cost that we wrote. A cost that differs is another component's.
	OwnCostAnnotation = "poolpriority.dev/pod-deletion-cost"

	// step is the distance between the costs of neighbouring pools.
	step = 1000
)

// Cost is the deletion cost of pods on nodes with these labels: positive on VMs, the higher the better their pool
// ranks, and negative in burst pools, the lower the worse they rank. Pods without a cost (0) thus go after the burst
// pools' pods and before ours on VMs. On nodes in no pool the cost is lower than in the last regular pool. On a virtual
// kubelet in no burst pool, which the scheduler does not use, it is the first burst pool's.
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

// Annotations returns the annotations to change on a pod that is bound to a node with these labels. current are the annotations that the pod has. An empty value removes an annotation. foreign is set if another component changed the cost since we
// wrote it; that cost stays, and so does one that existed before ours.
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

// Undo returns our annotations on a pod of another scheduler, to remove them: empty values, as in Annotations. A cost
// is ours if it has the value that we wrote; another value stays.
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
