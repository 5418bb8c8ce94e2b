package clusterautoscaler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Source derives one pool's status from the tracker.
type Source struct {
	Tracker *Tracker
	Groups  Groups
	Graces  pool.Graces
	// NodePools are Karpenter's NodePools that are the source of another pool.
	NodePools map[string]bool
}

// Status implements nodegroups.Source.
func (s Source) Status(nodes []*corev1.Node, now time.Time) nodegroups.SourceStatus {
	t := s.Tracker
	problem := t.problem
	if problem.Code == "" && now.Sub(t.changed) >= t.staleTime() {
		problem = reasonStale.With("last change seen at %s", t.changed.UTC().Format(time.RFC3339))
	}
	j := nodegroups.SourceStatus{Scans: t.scans.Scans}
	if problem.Code == "" {
		j.Until = t.changed.Add(t.staleTime())
	}
	nodes, byNodePool := s.byNodePool(nodes)
	j.Groups = append(s.groups(nodes, problem, now), s.foreign(byNodePool)...)
	if slices.ContainsFunc(j.Groups, func(g nodegroups.GroupStatus) bool { return len(g.Seen) == 0 }) {
		j.Until = nodegroups.Earliest(j.Until, nodegroups.SettlesAt(nodes, now)) // at that time, a group without Seen gets templates
	}
	return j.Summarized()
}

// byNodePool separates the nodes of each NodePool that is no pool's source from the other nodes.
func (s Source) byNodePool(nodes []*corev1.Node) (others []*corev1.Node, byName map[string][]*corev1.Node) {
	byName = map[string][]*corev1.Node{}
	for _, node := range nodes {
		if name := node.Labels[nodegroups.KarpenterNodePoolLabel]; name != "" && !s.NodePools[name] {
			byName[name] = append(byName[name], node)
		} else {
			others = append(others, node)
		}
	}
	return others, byName
}

// foreign returns a group for each NodePool that is no pool's source and has nodes in the pool, or had some in the last
// nodePoolMemory. Nothing but the nodes is known of such a NodePool, so it counts as able to grow.
func (s Source) foreign(byName map[string][]*corev1.Node) (groups []nodegroups.GroupStatus) {
	for _, key := range slices.Sorted(maps.Keys(s.Tracker.nodePools)) {
		n := s.Tracker.nodePools[key]
		name := n.Name
		if n.Pool != s.Groups.pool || s.NodePools[name] {
			continue
		}
		groups = append(groups, nodegroups.GroupStatus{
			Name: "NodePool/" + name, State: nodegroups.CanGrow, Members: byName[name], Open: true, Foreign: true, MinWait: 5 * time.Minute, // as karpenter.MaxWait
			Reason: reasonNodePool.With("before the pool, list one with karpenter: {nodePool: %s}", name),
			New:    &nodegroups.NewNodes{Choices: map[string][]string{nodegroups.KarpenterNodePoolLabel: {name}}, Taints: n.Taints},
		})
	}
	return groups
}

// groups returns the pool's groups. If the status has a problem, it returns the remembered groups as Unknown, with
// their nodes, so that each group's history is kept. If the tracker remembers no groups, it returns one Open group.
func (s Source) groups(nodes []*corev1.Node, problem nodegroups.Reason, now time.Time) (groups []nodegroups.GroupStatus) {
	t, inhabited, rest := s.Tracker, map[string]bool{}, notScaled
	members, elsewhere, anywhere := s.split(nodes)
	if problem.Code != "" {
		rest = func(nodes []*corev1.Node) nodegroups.GroupStatus {
			return nodegroups.GroupStatus{State: nodegroups.Unknown, Reason: problem, Members: nodes, Open: len(t.memory) == 0}
		}
		for _, name := range slices.Sorted(maps.Keys(t.memory)) {
			if s.has(name, len(members[name]) > 0) {
				inhabited[name] = t.memory[name].Present > 0
				groups = append(groups, s.unknown(name, members[name], problem, len(groups) == 0))
			}
		}
	} else {
		for i := range t.groups {
			if g := &t.groups[i]; s.has(g.Name, len(members[g.Name]) > 0) {
				inhabited[g.Name] = g.Health.NodeCounts.Registered.Ready+g.Health.NodeCounts.Registered.Unready.Total > 0
				groups = append(groups, s.groupStatus(g, members[g.Name], now))
			}
		}
		if len(groups) == 0 {
			return s.none(nodes)
		}
	}
	if len(anywhere) > 0 {
		groups = spread(groups, rest(anywhere), inhabited)
	}
	if len(elsewhere) > 0 || len(groups) == 0 {
		groups = append(groups, rest(elsewhere))
	}
	return groups
}

// split divides the pool's nodes into three parts. byGroup has the nodes in each of the pool's groups. elsewhere has
// the nodes that are in none of the pool's groups. anywhere has the nodes whose providerID and labels do not identify
// their group.
func (s Source) split(nodes []*corev1.Node) (byGroup map[string][]*corev1.Node, elsewhere, anywhere []*corev1.Node) {
	byGroup = map[string][]*corev1.Node{}
	for _, node := range nodes {
		names, placed := s.Tracker.members.groupsOf(node)
		its := false
		for _, name := range names {
			if s.has(name, true) {
				byGroup[name] = append(byGroup[name], node)
				its = true
			}
		}
		switch {
		case !placed:
			anywhere = append(anywhere, node)
		case !its:
			elsewhere = append(elsewhere, node)
		}
	}
	return byGroup, elsewhere, anywhere
}

// has returns true if the group belongs to the pool, or may belong to the pool as an orphan. hasNodes is set if nodes
// of the pool are in the group.
func (s Source) has(group string, hasNodes bool) bool {
	t, g := s.Tracker, s.Groups
	if len(g.patterns) > 0 {
		return g.owns(group)
	}
	m := t.memory[group] // nil if the group never had possible numbers
	return hasNodes || g.owns(group) || g.pool != "" && m != nil && m.Pool == g.pool || t.orphans[group] && g.mayClaim(group)
}

// notScaled returns a Full group for nodes that are in no group of the autoscaler.
func notScaled(nodes []*corev1.Node) nodegroups.GroupStatus {
	most := len(nodes)
	return nodegroups.GroupStatus{State: nodegroups.Full, Reason: reasonNotScaled.With("%d nodes", most), Members: nodes, MaxNodes: &most, AtMaximum: true}
}

// none is for a pool that has no group in the status. It returns one Unknown group with all nodes of the pool.
func (s Source) none(nodes []*corev1.Node) []nodegroups.GroupStatus {
	var names []string
	for i := range s.Tracker.groups {
		names = append(names, s.Tracker.groups[i].Name)
	}
	slices.Sort(names)
	reason := reasonNoGroup.With("the status has %s", strings.Join(names, ", "))
	if len(names) == 0 {
		reason = reasonNoGroup.With("the status has no node groups")
	}
	return []nodegroups.GroupStatus{{State: nodegroups.Unknown, Reason: reason, Members: nodes}}
}

// group returns the group with its current nodes and the templates of its earlier nodes. If the group has neither, New
// describes its expected nodes.
func (s Source) group(name string, members []*corev1.Node) nodegroups.GroupStatus {
	j := nodegroups.GroupStatus{Name: name, Members: members}
	if m := s.Tracker.memory[name]; m != nil && m.Pool == s.Groups.pool {
		j.Seen = m.Seen
	}
	if len(j.Members)+len(j.Seen) == 0 {
		j.New = &nodegroups.NewNodes{Choices: labelsOf(name)}
	}
	return j
}

// unknown returns a remembered group as Unknown. If first is set, the group's reason includes the problem's detail.
func (s Source) unknown(name string, members []*corev1.Node, problem nodegroups.Reason, first bool) nodegroups.GroupStatus {
	j := s.group(name, members)
	j.State, j.Reason = nodegroups.Unknown, problem.With("%s", name)
	if first && problem.Detail != "" {
		j.Reason.Detail += ": " + problem.Detail
	}
	return j
}

// groupStatus returns the status of a group that is in the autoscaler's status.
func (s Source) groupStatus(g *nodeGroup, members []*corev1.Node, now time.Time) nodegroups.GroupStatus {
	if g.odd != nil {
		return s.unknown(g.Name, members, reasonImpossible.With("%v", g.odd), true)
	}
	t := s.Tracker
	j := s.group(g.Name, members)
	j.LastScaleUp, j.MaxNodes = t.memory[g.Name].LastScaleUp, &g.Health.MaxSize
	j.Limits, j.Version = fmt.Sprint(g.Health.MaxSize), fmt.Sprintf("%d/%d/%d", g.Health.CloudProviderTarget, g.Health.MaxSize, t.generation)
	usable, starting := 0, 0
	for _, node := range members {
		switch {
		case nodegroups.IsLeaving(node):
		case nodegroups.IsStarting(node):
			starting++
		default:
			usable++
		}
	}
	// Nodes that became usable after the status was written are no longer missing.
	missing, startsUntil := g.Health.upcoming(), j.LastScaleUp.Add(s.Graces.Provision)
	if now.Before(startsUntil) {
		// In a pool with scale-down mode Deallocate, a stopped VM keeps its node, and a scale-up starts the VM again. So
		// does the VM of a suspended node. No more of these nodes are on their way than the scale-ups have ordered.
		stopped := g.Health.NodeCounts.Registered.Unready.Total + g.Health.NodeCounts.Registered.Suspended
		missing = max(missing, min(missing+stopped, t.memory[g.Name].Ordered))
	}
	missing = min(missing, g.Health.CloudProviderTarget-usable)
	changes := t.members.of(g.Name)
	if len(members) == 0 { // nodes that nothing assigns to a group may be in this group
		changes = changes.plus(t.members.of(unplaced(s.Groups.pool)))
	}
	t.evaluate(&j, g, missing, changes, s.Graces, now)
	if j.State == nodegroups.Growing {
		j.Arriving = max(0, missing-starting)
		if now.Before(startsUntil) {
			j.Until = nodegroups.Earliest(j.Until, startsUntil)
		}
	}
	j.BackingOff = j.State == nodegroups.CanGrow && j.Reason.Code != reasonBelowMax.Code
	if t.orphans[g.Name] {
		j.Reason.Detail += " (the pool of this group is not known yet)"
	}
	return j
}

// spread assigns the nodes of rest, whose group is unknown, to the groups without known nodes. If some of these groups
// are inhabited, that is, have nodes by the autoscaler's status, only the inhabited groups get nodes. If several groups
// can get the nodes, spread merges these groups into one. If all groups have known nodes, spread adds rest as a further
// group.
func spread(groups []nodegroups.GroupStatus, rest nodegroups.GroupStatus, inhabited map[string]bool) []nodegroups.GroupStatus {
	var told, empty, homes []nodegroups.GroupStatus
	for _, g := range groups {
		switch {
		case len(g.Members) > 0:
			told = append(told, g)
		case inhabited[g.Name]:
			homes = append(homes, g)
		default:
			empty = append(empty, g)
		}
	}
	open := false
	if len(homes) > 0 {
		told = append(told, empty...)
	} else {
		homes, open = empty, len(empty) > 1 // the nodes may be in any of these groups, and the templates of the other groups are unknown
	}
	if len(homes) == 0 {
		return append(told, rest)
	}
	slices.SortFunc(homes, func(a, b nodegroups.GroupStatus) int { return strings.Compare(a.Name, b.Name) }) // so that the name does not depend on the order in the status
	one := nodegroups.SourceStatus{Groups: homes}.Summarized()
	all := nodegroups.GroupStatus{State: one.State, Reason: one.Reason, Until: one.Until, Members: rest.Members, Open: open}
	all.AtMaximum = !slices.ContainsFunc(homes, func(g nodegroups.GroupStatus) bool { return !g.AtMaximum })
	names, versions, limits, most := make([]string, len(homes)), make([]string, len(homes)), make([]string, len(homes)), 0
	for i := range homes {
		if homes[i].MaxNodes != nil { // nil only if there is no usable status
			most += *homes[i].MaxNodes
			all.MaxNodes = &most
		}
		all.Arriving += homes[i].Arriving
		names[i], versions[i], limits[i] = homes[i].Name, homes[i].Version, homes[i].Limits
		all.LastScaleUp = nodegroups.Latest(all.LastScaleUp, homes[i].LastScaleUp)
	}
	all.Name, all.Version, all.Limits = strings.Join(names, ","), strings.Join(versions, ","), strings.Join(limits, ",")
	return append(told, all)
}

// evaluate sets j's State and Reason, and sets Until to the time at which the state next changes without an event.
// missing is the number of ordered nodes that the autoscaler still expects, and changes has the nodes that are going.
func (t *Tracker) evaluate(j *nodegroups.GroupStatus, g *nodeGroup, missing int, changes changes, graces pool.Graces, now time.Time) {
	m := t.memory[g.Name]
	is := func(state nodegroups.State, until time.Time, reason nodegroups.Reason, format string, args ...any) {
		j.State, j.Until, j.Reason = state, until, reason.With("%s: %s", g.Name, fmt.Sprintf(format, args...))
	}
	size, never := fmt.Sprintf("%d of %d", g.Health.CloudProviderTarget, g.Health.MaxSize), time.Time{}
	atMax := g.Health.atMax()
	late := m.Progress.Add(graces.Provision)
	backoffEnds := never
	if g.ScaleUp.Status != scaleUpBackoff && !m.BackoffSeen.IsZero() {
		backoffEnds = m.BackoffSeen.Add(backoffMemory)
	}
	inBackoff := !m.BackoffSeen.IsZero() && (backoffEnds.IsZero() || now.Before(backoffEnds))
	backoffFull := m.BackoffSince.Add(graces.Backoff)
	// The autoscaler does not scale up an unhealthy group or a group in backoff.
	unhealthy, unhealthyFull := !m.UnhealthySince.IsZero(), m.UnhealthySince.Add(graces.Backoff)

	switch {
	case atMax && changes.leaving > 0:
		is(nodegroups.CanGrow, t.members.stuckAt, reasonShrinking, "%d nodes, %s", changes.leaving, size)
	case atMax && changes.lost > 0:
		is(nodegroups.CanGrow, never, reasonBehind, "%d nodes, %s", changes.lost, size)
	case missing > 0 && atMax:
		is(nodegroups.Full, never, reasonNodesMissing, "%d missing, %s", missing, size)
	case atMax:
		is(nodegroups.Full, never, reasonAtMax, "%s", size)
	case inBackoff && !now.Before(backoffFull):
		is(nodegroups.Full, backoffEnds, reasonBackoff, "%s: %s", m.BackoffInfo.ErrorCode, m.BackoffInfo.ErrorMessage)
	case unhealthy && !now.Before(unhealthyFull):
		is(nodegroups.Full, never, reasonUnhealthy, "%s", size)
	case inBackoff && unhealthy:
		is(nodegroups.CanGrow, nodegroups.Earliest(backoffFull, unhealthyFull), reasonBackingOff, "%s, %s, unhealthy", m.BackoffInfo.ErrorCode, size)
	case inBackoff:
		is(nodegroups.CanGrow, backoffFull, reasonBackingOff, "%s, %s", m.BackoffInfo.ErrorCode, size)
	case unhealthy:
		is(nodegroups.CanGrow, unhealthyFull, reasonUnhealthyBackingOff, "%s", size)
	default:
		is(nodegroups.CanGrow, never, reasonBelowMax, "%s", size)
	}
	j.AtMaximum = atMax && j.State == nodegroups.Full
	if missing > 0 && now.Before(late) {
		is(nodegroups.Growing, late, nodegroups.ReasonProvisioning, "%d to come, %s", missing, size)
	}
}
