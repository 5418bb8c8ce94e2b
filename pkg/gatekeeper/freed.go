package gatekeeper

import (
	"cmp"
	"context"
	"maps"
	"slices"
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

// lookInterval is the shortest time between two looks at the freed nodes.
const lookInterval = 100 * time.Millisecond

// settles are the ages of an event until which a cycle may fail that began before the event, most of them until the first. The
// gatekeeper looks at the node at once, and at each of the other ages. It tries pods whose last cycle failed before the last of
// these ages that is over, or before the first.
var settles = []time.Duration{lookInterval, time.Second, 5 * time.Second}

// settled returns how many of settles count at the age.
func settled(age time.Duration) int {
	n, _ := slices.BinarySearch(settles, age+1)
	return max(n, 1)
}

// freedNodes are nodes that may have free capacity for held pods.
type freedNodes struct {
	mu      sync.Mutex
	since   map[string]time.Time // when capacity last became free, by the node's name
	changed chan struct{}        // gets a value when since changes
}

// Freed records that the node may have capacity for held pods, because a pod ended, was not bound or is no longer nominated, or
// because the node changed. The name may be empty. The plugin calls Freed when the scheduler has the event, and the gatekeeper
// when it has counted that a pod ended. Informers deliver an event to the two in any order.
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
	return cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName)
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
			rested = now.Add(min(max(lookInterval, restFactor*clock.Now().Sub(now)), time.Second))
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
				space.TriedBefore = at.Add(settles[settled(now.Sub(at))-1])
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
		switch n := settled(now.Sub(at)); {
		case spaces[name] != nil && spaces[name].Pending:
			next = nodegroups.Earliest(next, now.Add(2*lookInterval)) // the pods may have been tried by then
		case n < len(settles):
			next = nodegroups.Earliest(next, at.Add(settles[n]))
		default:
			delete(g.freedNodes.since, name)
		}
	}
	return next
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
