package poolpriority

import (
	"context"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
)

// maxRoomTries bounds how many cycles a pod tries to make room without getting a node. A dry run has found victims in
// each of them, so in general the first preemption succeeds. An extender may refuse it, or the API server may refuse to
// delete a victim.
const maxRoomTries = 3

// room returns the pod's wait for the room that it will make on a node outside the burst pools, by preempting pods of a
// lower priority than below. It returns nil if there is no such node.
func (s *search) room(ctx context.Context, c *cycle, below int32) (*gate.Wait, error) {
	tries := s.pl.roomTries.count(s.pod.UID)
	if tries >= maxRoomTries {
		return nil, nil
	}
	node, err := s.limitVictims(ctx, c, below)
	if node == "" {
		return nil, err
	}
	s.pl.roomTries.Add(s.pod.UID, tries+1)
	return &gate.Wait{Reason: gate.ReasonMakesRoom.With("on node %s", node), Until: s.pl.clock.Now().Add(endingSlack)}, nil
}

// limitVictims limits this cycle's preemption to pods of a lower priority than below, if the pod will fit a node outside
// the burst pools without such pods. It returns the name of the node, or "". Otherwise, preemption would rather kill
// pods of a higher priority than violate a PodDisruptionBudget of placeholders.
func (s *search) limitVictims(ctx context.Context, c *cycle, below int32) (node string, err error) {
	p := s.pl.preemption
	if p == nil || !s.pl.strict || s.burstOnly || inPodGroupCycle(s.state) {
		return "", nil // if only burst nodes can be feasible, no preemption helps
	}
	c.below = below
	defer func() {
		if node == "" {
			c.below = math.MaxInt32
		}
	}()
	var nodes []fwk.NodeInfo
	for place := range s.pl.index.tiers {
		rank := s.order.RankAt(place)
		if s.pl.pools.IsBurstRank(rank) {
			break
		}
		for _, position := range s.pl.index.tiers[rank] {
			if s.mayPreempt(position) && s.allows(position) {
				nodes = append(nodes, s.nodes[position])
			}
		}
	}
	if len(nodes) == 0 {
		return "", nil
	}
	budgets, _ := p.evaluator.PdbLister.List(labels.Everything()) // does not fail
	c.dryRuns.Range(func(node, r any) bool {
		if slices.ContainsFunc(r.(dryRun).Victims, func(victim *v1.Pod) bool { return !p.mayPreempt(victim) }) {
			c.dryRuns.Delete(node) // it was made without the limit
		}
		return true
	})
	if err := c.hosts.count(false); err != nil {
		return "", err
	}
	candidates, _, err := p.evaluator.DryRunPreemption(ctx, s.state, s.pod, nodes, budgets, 0, 1)
	if len(candidates) == 0 {
		c.dryRuns.Clear() // they were made with the limit
		return "", err
	}
	return candidates[0].Name(), nil
}
