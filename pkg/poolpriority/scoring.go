package poolpriority

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// errChanged is returned when nodes became feasible after PreFilter had found no feasible node. The best rank of these
// nodes is unknown, so the pod is retried after its backoff.
var errChanged = errors.New("nodes became feasible while the pod was being scheduled, trying again")

// PreScore skips Score with the strict order, because all remaining nodes have the same rank. In a widened cycle, the
// nodes may have several ranks, so Score runs.
func (pl *PoolPriority) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if !pl.strict {
		return nil
	}
	c, err := readCycle(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c.widened {
		return nil
	}
	if !c.narrowed && len(nodes) > 1 {
		return fwk.AsStatus(errChanged)
	}
	return fwk.NewStatus(fwk.Skip)
}

// Score returns 100 for nodes of the first rank, 0 for nodes of the last rank, and evenly spaced values between them.
func (pl *PoolPriority) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, nodeInfo fwk.NodeInfo) (int64, *fwk.Status) {
	rank, _ := pl.index.rankOf(nodeInfo.Node())
	order, _ := pl.pools.OrderOf(pod.Annotations)
	last := int64(pl.pools.Ranks() - 1)
	return fwk.MaxNodeScore * (last - int64(order.PlaceOf(rank))) / last, nil
}

// ScoreExtensions returns nil: the scores are between 0 and 100 as they are.
func (pl *PoolPriority) ScoreExtensions() fwk.ScoreExtensions { return nil }
