package poolpriority

import (
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// countStarting counts the pods on the nodes of each burst pool that may still start, where that matters. Pods that were placed in earlier
// cycles and are not bound yet are among them: with serial cycles, a pool whose provider is tried with one pod gets one.
func (pl *PoolPriority) countStarting(uses []gate.Use, nodes []fwk.NodeInfo) {
	for i := range pl.pools.Burst() {
		if !pl.gatekeeper.Refuses(i) {
			continue
		}
		now, within := pl.clock.Now(), gatekeeper.StartWithin(pl.pools.At(i).Burst)
		for _, position := range pl.index.tiers[pl.pools.RankAt(i)] {
			for _, info := range nodes[position].GetPods() {
				if refusal.IsStarting(info.GetPod(), within, now) {
					uses[i].Starting++
				}
			}
		}
	}
}
