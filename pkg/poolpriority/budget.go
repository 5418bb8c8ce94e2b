package poolpriority

import (
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// burstPods are the pods on a node of a burst pool, what each takes of the pool's budget, which may still start, and what all take.
type burstPods struct {
	pods  []fwk.PodInfo
	uses  []aci.Use
	young []bool
	sum   aci.Use
}

// countBurst sums up what the node's pods take of the budget of the burst pool, and finds those that may still start. A pod that changes is another PodInfo, and one that goes leaves
// its place to the last: with thousands of pods on a virtual node, most are as they were.
func (e *entry) countBurst(pods []fwk.PodInfo, p *pool.Pool) {
	if e.burst == nil {
		e.burst = &burstPods{}
	}
	b, sum := e.burst, aci.Use{}
	for i, info := range pods {
		switch {
		case i == len(b.pods):
			b.pods, b.uses, b.young = append(b.pods, info), append(b.uses, aci.UseOf(info.GetPod(), p.OnACI())), append(b.young, refusal.MayStart(info.GetPod()))
		case b.pods[i] != info:
			b.pods[i], b.uses[i], b.young[i] = info, aci.UseOf(info.GetPod(), p.OnACI()), refusal.MayStart(info.GetPod())
		}
		sum = sum.Plus(b.uses[i])
	}
	clear(b.pods[len(pods):])
	b.pods, b.uses, b.young, b.sum = b.pods[:len(pods)], b.uses[:len(pods)], b.young[:len(pods)], sum
}

// burstUse is what is on the nodes of each burst pool, by the pool's index. Pods that were placed in earlier cycles and are
// not bound yet are among them: with serial cycles, a budget that goes by it is never overshot.
func (x *index) burstUse() []aci.Use {
	uses := make([]aci.Use, x.pools.Len())
	for i := range x.pools.Burst() {
		for _, position := range x.tiers[x.pools.RankAt(i)] {
			uses[i] = uses[i].Plus(x.entries[position].burst.sum)
		}
	}
	return uses
}
