package gatekeeper

import (
	"context"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Informers deliver an event to the scheduler's cache and to the gatekeeper in any order. A held pod that was tried
// shortly after the event may have been tried too early. The gatekeeper therefore tries held pods again after
// firstSettle and after lastSettle. Between two looks, it pauses for at least lookInterval.
const (
	lookInterval = 100 * time.Millisecond
	firstSettle  = time.Second
	lastSettle   = 5 * time.Second
)

// freedNodes are nodes that may have free capacity for held pods.
type freedNodes struct {
	mu      sync.Mutex
	since   map[string]time.Time // when capacity last became free, by the node's name
	changed chan struct{}        // gets a value when since changes
}

// Freed records that the node may have capacity for held pods, because a pod ended or the node changed. The name may be
// empty.
func (g *Gatekeeper) Freed(node string) {
	if node == "" {
		return
	}
	now := g.config.Clock.Now()
	g.freedNodes.mu.Lock()
	g.freedNodes.since[node] = now
	g.freedNodes.mu.Unlock()
	poke(g.freedNodes.changed)
}

// placeOf returns the node on which the scheduler counts the pod's requests.
func placeOf(pod *v1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	return pod.Status.NominatedNodeName
}

// freesCapacity reports whether the pod's change may free capacity on the pod's node, or on the node to which the pod
// was nominated.
func freesCapacity(before, pod *v1.Pod) bool {
	if placeOf(before) == "" {
		return false
	}
	if before.UID != pod.UID || placeOf(before) != placeOf(pod) || isEnded(pod) && !isEnded(before) {
		return true
	}
	options := resource.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: compat.PodLevelResize}
	return !equality.Semantic.DeepEqual(resource.PodRequests(before, options), resource.PodRequests(pod, options))
}

// maySuitMore reports whether the node may suit more pods after the change.
func maySuitMore(before, node *v1.Node) bool {
	return !equality.Semantic.DeepEqual(before.Status.Allocatable, node.Status.Allocatable) ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, node.Spec.Taints) || !maps.Equal(before.Labels, node.Labels) ||
		before.Spec.Unschedulable && !node.Spec.Unschedulable || nodegroups.IsReady(node) && !nodegroups.IsReady(before)
}

// fillSpaces admits held pods for nodes on which capacity became free. It returns when the context ends.
func (g *Gatekeeper) fillSpaces(ctx context.Context) {
	clock := g.config.Clock
	timer := clock.NewTimer(0)
	defer func() { timer.Stop() }()
	var rested time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.freedNodes.changed:
		case <-timer.C():
		}
		now := clock.Now()
		due := rested
		if !now.Before(rested) {
			due = g.look(klog.FromContext(ctx), now)
			rested = now.Add(min(max(lookInterval, restFactor*clock.Now().Sub(now)), firstSettle))
		}
		timer.Stop()
		if !due.IsZero() {
			timer = clock.NewTimer(max(due.Sub(clock.Now()), time.Millisecond))
		}
	}
}

// look admits held pods that may fit on the freed nodes. It returns when the next look is due.
func (g *Gatekeeper) look(logger klog.Logger, now time.Time) time.Time {
	g.freedNodes.mu.Lock()
	freed := maps.Clone(g.freedNodes.since)
	g.freedNodes.mu.Unlock()
	spaces := make(map[string]*held.Space, len(freed))
	for name, at := range freed {
		if node, err := g.nodes.Get(name); err == nil { // else, the node was deleted
			if space := g.spaceOn(node); space != nil {
				space.TriedBefore = at.Add(settled(now.Sub(at)))
				spaces[name] = space
			}
		}
	}
	if n := g.held.WithinSpaces(spaces, now); n > 0 {
		logger.V(2).Info("Nodes may have capacity for held pods", "pods", n, "nodes", len(spaces))
		poke(g.batch)
	}
	g.freedNodes.mu.Lock()
	defer g.freedNodes.mu.Unlock()
	var next time.Time
	for name, at := range g.freedNodes.since {
		switch age := now.Sub(at); {
		case spaces[name] != nil && spaces[name].Pending:
			next = nodegroups.Earliest(next, now.Add(2*lookInterval)) // the pods may have been tried by then
		case age < firstSettle:
			next = nodegroups.Earliest(next, at.Add(firstSettle))
		case age < lastSettle:
			next = nodegroups.Earliest(next, at.Add(lastSettle))
		default:
			delete(g.freedNodes.since, name)
		}
	}
	return next
}

// settled returns a delay after an event of this age. Pods whose last cycle failed before the delay ended are tried
// again.
func settled(age time.Duration) time.Duration {
	switch {
	case age >= lastSettle:
		return lastSettle
	case age >= firstSettle:
		return firstSettle
	}
	return lookInterval
}

// burstSpaces returns the Spaces of all burst nodes that the scheduler uses.
func (g *Gatekeeper) burstSpaces() map[string]*held.Space {
	spaces := map[string]*held.Space{}
	byPool, _ := g.byPool()
	for i := range g.config.Pools.Burst() {
		for _, node := range byPool[i] {
			if space := g.spaceOn(node); space != nil {
				spaces[node.Name] = space
			}
		}
	}
	return spaces
}

// spaceOn returns the node's Space, or nil if the scheduler does not use the node.
func (g *Gatekeeper) spaceOn(node *v1.Node) *held.Space {
	rank, i := g.config.Pools.RankOf(node)
	space := &held.Space{Node: node, Burst: pool.None, Used: g.usage.Of(node.Name)}
	if g.config.Pools.IsBurst(i) {
		space.Burst, space.Tolerations = i, g.config.Pools.At(i).Tolerations()
	}
	if rank == pool.Excluded || space.Burst != pool.None && (!nodegroups.IsReady(node) || node.Spec.Unschedulable || g.config.Pools.LacksLabel(node)) {
		return nil
	}
	return space
}
