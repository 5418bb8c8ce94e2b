package poolpriority

import (
	v1 "k8s.io/api/core/v1"
)

// young calls visit for each pod on the nodes of the burst pool with index i that may still start. Pods that were placed in earlier cycles and are
// not bound yet are among them: with serial cycles, a pool whose provider is tried with one pod gets one.
func (x *index) young(i int, visit func(*v1.Pod)) {
	for _, position := range x.tiers[x.pools.RankAt(i)] {
		b := x.entries[position].burst
		for k, info := range b.pods {
			if b.young[k] {
				visit(info.GetPod())
			}
		}
	}
}
