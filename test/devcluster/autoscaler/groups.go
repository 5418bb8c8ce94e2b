package autoscaler

import (
	"fmt"
	"maps"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// group is a node group in one loop.
type group struct {
	Group
	nodes []*corev1.Node
	readiness
	current int // the cloud's target after what the loop has ordered so far
	shown   int // the target that the loop counts with and the status gives
}

// readiness counts nodes as the status does. Source: clusterstate.go, Readiness.
type readiness struct {
	registered, ready, unready, notStarted, beingDeleted int
	unregistered, longUnregistered                       int
	waiting                                              []string // the VMs that count as long unregistered
}

func (r *readiness) empty() bool { return r.registered+r.unregistered+r.longUnregistered == 0 }

// request is a scale-up under way.
type request struct {
	increase     int
	at, expected time.Time
}

// wrongSize is a difference between a target and the nodes that exist.
type wrongSize struct {
	registered, target int
	since              time.Time
}

// register takes stock. Source: updateClusterStateRegistry.
func (l *loop) register() {
	l.count()
	l.updateRequests()
	l.updateBroken()
	l.updateSizes()
}

// count sorts the nodes and VMs by group.
func (l *loop) count() {
	owner := map[string]*group{}
	instance := map[string]Instance{}
	for _, g := range l.world.Groups {
		l.groups = append(l.groups, &group{Group: g, current: g.Target, shown: g.Target})
	}
	sort.Slice(l.groups, func(i, j int) bool { return strings.Compare(l.groups[i].Name, l.groups[j].Name) < 0 })
	for _, g := range l.groups {
		for _, i := range g.Instances {
			owner[i.Name], instance[i.Name] = g, i
		}
	}
	exists := map[string]bool{}
	for _, node := range l.world.Nodes {
		exists[node.Name] = true
		if g := owner[node.Name]; g != nil {
			g.nodes = append(g.nodes, node)
			l.countNode(&g.readiness, node, instance[node.Name].Gone)
		}
		l.countNode(&l.total, node, instance[node.Name].Gone)
	}
	seen := map[string]time.Time{}
	for _, g := range l.groups {
		for _, i := range g.Instances {
			if !exists[i.Name] && !i.Deleting && !i.Gone && i.ErrorCode == "" {
				seen[i.Name] = l.countUnregistered(g, i.Name)
			}
		}
	}
	l.unregistered = seen
	maps.DeleteFunc(l.removing, func(name string, _ bool) bool { // the cloud has accepted the deletion
		i, ok := instance[name]
		return !ok || i.Deleting || i.Gone
	})
}

func (l *loop) countNode(r *readiness, node *corev1.Node, gone bool) {
	r.registered++
	switch {
	case gone:
		r.beingDeleted++
	case started(node):
		r.ready++
	case node.CreationTimestamp.Add(l.options.MaxNodeStartupTime).After(l.now):
		r.notStarted++
	default:
		r.unready++
	}
}

// countUnregistered counts a VM without a Node and returns since when it has been one.
func (l *loop) countUnregistered(g *group, name string) time.Time {
	since, ok := l.unregistered[name]
	if !ok {
		since = l.now
	}
	if since.Add(l.options.MaxNodeProvisionTime).Before(l.now) {
		g.longUnregistered++
		l.total.longUnregistered++
		g.waiting = append(g.waiting, name)
	} else {
		g.unregistered++
		l.total.unregistered++
	}
	return since
}

// upcoming is the number of nodes that are on their way, by the autoscaler's own formula (GetUpcomingNodes).
func (g *group) upcoming() int { return max(g.shown-(g.ready+g.unready+g.longUnregistered), 0) }

// missing reports whether nodes have yet to register or to start.
func (g *group) missing() bool { return g.shown > g.registered-g.notStarted }

// updateRequests ends the scale-ups that are complete, and those that took too long: their groups go into back-off.
func (l *loop) updateRequests() {
	l.forgetBackoffs()
	for _, g := range l.groups {
		r, ok := l.requests[g.Name]
		switch {
		case !ok:
		case !g.missing():
			delete(l.requests, g.Name)
			if l.options.ForgetOnSuccess {
				delete(l.backoffs, g.Name)
			}
		case r.expected.Before(l.now):
			delete(l.requests, g.Name)
			l.backOff(g.Name, "timeout", fmt.Sprintf("Scale-up timed out for node group %s after %v", g.Name, l.now.Sub(r.at)))
		}
	}
}

// requested notes that the group was grown by n, or that n of what it was grown by failed if n is negative.
func (l *loop) requested(name string, n int) {
	r, ok := l.requests[name]
	if r.increase += n; r.increase <= 0 {
		delete(l.requests, name)
		return
	}
	if n > 0 || !ok {
		r.at, r.expected = l.now, l.now.Add(l.options.MaxNodeProvisionTime)
	}
	l.requests[name] = r
}

// updateBroken puts groups in back-off in which VMs failed to be made while they grew.
func (l *loop) updateBroken() {
	seen := map[string]bool{}
	for _, g := range l.groups {
		fresh, reason := 0, Instance{}
		for _, i := range g.Instances {
			if i.ErrorCode == "" {
				continue
			}
			seen[i.Name] = true
			if !l.broken[i.Name] {
				fresh, reason = fresh+1, i
			}
		}
		if _, growing := l.requests[g.Name]; fresh > 0 && growing && g.missing() {
			l.requested(g.Name, -fresh)
			l.backOff(g.Name, reason.ErrorCode, reason.ErrorMessage)
		}
	}
	l.broken = seen
}

// updateSizes notes since when groups have had more nodes than they should, or fewer than the cloud has VMs for.
func (l *loop) updateSizes() {
	sizes := map[string]wrongSize{}
	for _, g := range l.groups {
		if g.empty() || (g.registered <= g.shown && g.registered >= g.shown-g.unregistered-g.longUnregistered) {
			continue
		}
		size := wrongSize{registered: g.registered, target: g.shown, since: l.now}
		if old, ok := l.sizes[g.Name]; ok && old.registered == size.registered && old.target == size.target {
			size = old
		}
		sizes[g.Name] = size
	}
	l.sizes = sizes
}

// recalculate makes the loop use the targets after its orders.
func (l *loop) recalculate() {
	for _, g := range l.groups {
		g.shown = g.current
	}
}

// clusterHealthy reports whether few enough nodes are unready. Source: IsClusterHealthy.
func (l *loop) clusterHealthy() bool {
	return !l.world.Unhealthy && !l.tooMany(l.total.unready, len(l.world.Nodes))
}

// healthy reports whether nearly all nodes that the group should have are ready. Source: IsNodeGroupHealthy.
func (l *loop) healthy(g *group) bool {
	if g.Unhealthy {
		return false
	}
	least := g.shown - g.longUnregistered - l.requests[g.Name].increase
	if g.empty() {
		return g.shown == 0 || least == 0
	}
	return !l.tooMany(least-g.ready, g.ready+g.unready+g.notStarted)
}

func (l *loop) tooMany(unready, of int) bool {
	return unready > l.options.OkUnready && float64(unready) > l.options.UnreadyShare*float64(of)
}

// growing reports whether the status shows the group's scale-up as under way.
func (l *loop) growing(g *group) bool {
	_, ok := l.requests[g.Name]
	return ok && g.missing()
}

// giveUpUnregistered deletes VMs that did not register in time. The status of this loop does not show it yet.
func (l *loop) giveUpUnregistered() {
	for _, g := range l.groups {
		names := g.waiting[:min(len(g.waiting), max(g.current-g.Min, 0))]
		if len(names) == 0 || l.cloud.Delete(g.Name, names) != nil {
			continue
		}
		g.current -= len(names)
	}
}

// deleteBroken deletes VMs that could not be made.
func (l *loop) deleteBroken() {
	deleted := false
	for _, g := range l.groups {
		var names []string
		for _, i := range g.Instances {
			if i.ErrorCode != "" && !i.Deleting {
				names = append(names, i.Name)
			}
		}
		if len(names) == 0 || l.cloud.Delete(g.Name, names) != nil {
			continue
		}
		g.current -= len(names)
		deleted = true
	}
	if deleted {
		l.recalculate()
	}
}

// fixSizes lowers targets that have been above what exists for too long, and reports whether it did.
func (l *loop) fixSizes() bool {
	fixed := false
	for _, g := range l.groups {
		size, ok := l.sizes[g.Name]
		if !ok || size.registered >= size.target || !size.since.Add(l.options.MaxNodeProvisionTime).Before(l.now) {
			continue
		}
		if l.cloud.Lower(g.Name, size.target-size.registered) == nil {
			g.current -= size.target - size.registered
			fixed = true
		}
	}
	return fixed
}
