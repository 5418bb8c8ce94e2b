package autoscaler

import (
	"fmt"
	"maps"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// group is a node group during one loop.
type group struct {
	Group
	nodes []*corev1.Node
	readiness
	current int // the cloud's target after the loop's orders so far
	shown   int // the target that the loop uses and the status shows
}

// readiness counts nodes as the status does. Source: clusterstate.go, Readiness.
type readiness struct {
	registered, ready, unready, notStarted int
	unregistered, longUnregistered         int
	waiting                                []string // the VMs that longUnregistered counts
}

func (r *readiness) empty() bool { return r.registered+r.unregistered+r.longUnregistered == 0 }

// request is a scale-up that has not completed.
type request struct {
	increase     int
	at, expected time.Time
}

// wrongSize is a difference between a group's target and its nodes.
type wrongSize struct {
	registered, target int
	since              time.Time
}

// register reads the state of the groups. Source: updateClusterStateRegistry.
func (l *loop) register() {
	l.count()
	l.updateRequests()
	l.updateBroken()
	l.updateSizes()
}

// count counts the nodes and VMs of each group.
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
			l.countNode(&g.readiness, node)
		}
		l.countNode(&l.total, node)
	}
	seen := map[string]time.Time{}
	for _, g := range l.groups {
		for _, i := range g.Instances {
			if !exists[i.Name] && !i.Deleting && i.ErrorCode == "" {
				seen[i.Name] = l.countUnregistered(g, i.Name)
			}
		}
	}
	l.unregistered = seen
	maps.DeleteFunc(l.removing, func(name string, _ bool) bool { // the cloud has accepted its deletion
		i, ok := instance[name]
		return !ok || i.Deleting
	})
}

func (l *loop) countNode(r *readiness, node *corev1.Node) {
	r.registered++
	switch {
	case started(node):
		r.ready++
	case node.CreationTimestamp.Add(l.options.MaxNodeStartupTime).After(l.now):
		r.notStarted++
	default:
		r.unready++
	}
}

// countUnregistered counts a VM without a Node. It returns when the autoscaler first saw the VM without a Node.
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

// upcoming returns the number of nodes that the target has and the cluster lacks, by the autoscaler's own formula
// (calculateUpcomingNodesInNodeGroup).
func (g *group) upcoming() int { return max(g.shown-(g.ready+g.unready+g.longUnregistered), 0) }

// missing reports whether nodes have yet to register or to start. Since 1.36, nodes that are being removed count as
// missing, too.
func (l *loop) missing(g *group) bool {
	if l.options.Minor >= 36 {
		return g.upcoming() > 0
	}
	return g.shown > g.registered-g.notStarted
}

// updateRequests drops the scale-ups that are complete or have taken too long. If a scale-up took too long, its group
// goes into backoff. Since 1.36, the autoscaler also lowers the target by all nodes of the scale-up, even if some have
// come, and goes on with the old target.
func (l *loop) updateRequests() {
	l.forgetBackoffs()
	for _, g := range l.groups {
		r, ok := l.requests[g.Name]
		switch {
		case !ok:
		case !l.missing(g):
			delete(l.requests, g.Name)
		case r.expected.Before(l.now):
			delete(l.requests, g.Name)
			l.backOff(g.Name, "timeout", fmt.Sprintf("Scale-up timed out for node group %s after %v", g.Name, l.now.Sub(r.at)))
			if l.options.Minor >= 36 {
				_ = l.lower(g, r.increase) // the real one writes the event FailedToRevertScaleUp
			}
		}
	}
}

// requested records that the group was grown by n. A negative n takes back VMs that failed.
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

// If VMs of a growing group have failed since the last loop, updateBroken puts the group in backoff.
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
		if _, growing := l.requests[g.Name]; fresh > 0 && growing && l.missing(g) {
			l.requested(g.Name, -fresh)
			l.backOff(g.Name, reason.ErrorCode, reason.ErrorMessage)
		}
	}
	l.broken = seen
}

// updateSizes records since when a group has been larger or smaller than its target. It is larger if it has more nodes
// than its target. It is smaller if it has fewer nodes and unregistered VMs together. Groups without nodes and VMs are
// left out.
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

// recalculate updates the targets that the loop uses with the loop's orders.
func (l *loop) recalculate() {
	for _, g := range l.groups {
		g.shown = g.current
	}
}

// clusterHealthy reports whether the number of unready nodes is within the limits. Source: IsClusterHealthy.
func (l *loop) clusterHealthy() bool {
	return !l.world.Unhealthy && !l.tooMany(l.total.unready, len(l.world.Nodes))
}

// healthy reports whether the number of missing or unready nodes of the group is within the limits. Source:
// IsNodeGroupHealthy.
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

// growing reports whether the status shows that the group is being scaled up.
func (l *loop) growing(g *group) bool {
	_, ok := l.requests[g.Name]
	return ok && l.missing(g)
}

// giveUpUnregistered deletes VMs that did not register in time. The loop goes on with the old target.
func (l *loop) giveUpUnregistered() {
	for _, g := range l.groups {
		names := g.waiting[:min(len(g.waiting), max(g.current-g.Min, 0))]
		if len(names) == 0 || l.cloud.Delete(g.Name, names) != nil {
			continue
		}
		g.current -= len(names)
	}
}

// deleteBroken deletes VMs that could not be created.
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

// fixSizes lowers each target that has exceeded the group's number of nodes for too long. It reports whether the loop
// ends.
func (l *loop) fixSizes() bool {
	fixed := false
	for _, g := range l.groups {
		size, ok := l.sizes[g.Name]
		if !ok || size.registered >= size.target || !size.since.Add(l.options.MaxNodeProvisionTime).Before(l.now) {
			continue
		}
		if l.lower(g, size.target-size.registered) != nil {
			return true // the loop ends with an error
		}
		fixed = true
	}
	return fixed
}

// lower lowers the target by n. Providers refuse a target below the number of VMs. This is simulated for 1.36 and later
// only, so that random histories of earlier versions stay as they are.
func (l *loop) lower(g *group, n int) error {
	if l.options.Minor >= 36 && g.current-n < len(g.Instances) {
		return fmt.Errorf("attempt to delete existing nodes of %s: target %d, delta -%d, %d VMs", g.Name, g.current, n, len(g.Instances))
	}
	if err := l.cloud.Lower(g.Name, n); err != nil {
		return fmt.Errorf("lowering the target of %s: %w", g.Name, err)
	}
	g.current -= n
	return nil
}
