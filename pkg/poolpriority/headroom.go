package poolpriority

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
)

// maxRoomTries bounds how many cycles in a row a pod tries to make room. A dry run has found victims in each of them, so
// in general the first preemption succeeds. An extender may refuse it, or the API server may refuse to delete a victim.
const maxRoomTries = 3

// room returns a reservation on a node outside the burst pools that the pod will fit once it has preempted pods of a
// lower priority than below, or nil if there is no such node. In this cycle, preemption then takes only such pods.
// Otherwise, it would rather kill pods of a higher priority than violate a PodDisruptionBudget of the placeholders.
func (s *search) room(ctx context.Context, c *cycle, below int32) (*held.Reservation, error) {
	p, tries := s.pl.preemption, s.pl.roomTries.count(s.pod.UID)
	if p == nil || !s.pl.wrapped || s.burstOnly || inPodGroupCycle(s.state) || tries >= maxRoomTries {
		return nil, nil // if only burst nodes can be feasible, no preemption helps
	}
	p.below = below
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
		return nil, nil
	}
	budgets, err := p.evaluator.PdbLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	c.dryRuns.Range(func(node, r any) bool {
		if slices.ContainsFunc(r.(dryRun).Victims, func(victim *v1.Pod) bool { return corev1helpers.PodPriority(victim) >= below }) {
			c.dryRuns.Delete(node) // it was made without the limit
		}
		return true
	})
	candidates, _, err := p.evaluator.DryRunPreemption(ctx, s.state, s.pod, nodes, budgets, 0, 1)
	if len(candidates) == 0 {
		return nil, err
	}
	s.pl.roomTries.Add(s.pod.UID, tries+1)
	node := candidates[0].Name()
	return &held.Reservation{Wait: gate.Wait{Reason: gate.ReasonMakesRoom.With("on node %s", node), Until: s.pl.clock.Now().Add(endingSlack)}, Node: node}, nil
}

// makesRoom reports whether the gate is closed in this cycle because the pod can make room.
func (c *cycle) makesRoom() bool {
	return c.reservation != nil && c.reservation.Reason.Code == gate.ReasonMakesRoom.Code
}
