package clusterautoscaler

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// OwnedGroups holds the source and the nodes of a pool.
type OwnedGroups struct {
	Source
	Nodes []*corev1.Node
}

// ObserveNodes updates the tracker with the nodes of the cluster and with owned, the pools whose source is the tracker.
// It remembers the templates of each group's nodes, because the group may later have no nodes. ObserveNodes returns the
// orphans. An orphan is a group without nodes whose pool is unknown: neither the configuration nor earlier nodes assign
// it to a pool. An orphan belongs to every pool that may claim the orphan (mayClaim), because a group that was scaled
// to zero can still grow.
func (t *Tracker) ObserveNodes(owned []OwnedGroups, nodes []*corev1.Node, now time.Time) (orphans []string) {
	pools, byNode := map[string]bool{}, map[string]string{}
	for i := range owned {
		for _, node := range owned[i].Nodes {
			byNode[node.Name] = owned[i].Groups.pool
		}
	}
	t.members.observe(nodes, byNode, t.Draining, now)
	for i := range owned {
		pools[owned[i].Groups.pool] = true
		t.see(&owned[i], now)
	}
	t.seeNodePools(owned, now)
	t.see(&OwnedGroups{Nodes: t.members.unowned(owned, nodes)}, now)
	inhabited := map[string]bool{}
	for _, known := range t.members.byName {
		for _, name := range known.groups {
			inhabited[name] = true
		}
	}
	t.orphans = map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(t.memory)) { // the groups of the last readable status
		named := slices.ContainsFunc(owned, func(c OwnedGroups) bool { return c.Groups.owns(name) })
		if !named && !inhabited[name] && !pools[t.memory[name].Pool] && !t.isElsewhere(name, owned) {
			t.orphans[name] = true
			orphans = append(orphans, name)
		}
	}
	return orphans
}

// seeNodePools remembers the NodePools of the pools' nodes.
func (t *Tracker) seeNodePools(owned []OwnedGroups, now time.Time) {
	inhabited := map[string]bool{}
	for i := range owned {
		_, byName := owned[i].byNodePool(owned[i].Nodes)
		for name, nodes := range byName {
			key := owned[i].Groups.pool + "/" + name
			inhabited[key] = true
			// The NodePool's taints are on all of its nodes.
			plainest := slices.MinFunc(nodes, func(a, b *corev1.Node) int { return len(a.Spec.Taints) - len(b.Spec.Taints) })
			t.nodePools[key] = NodePool{Pool: owned[i].Groups.pool, Name: name, Taints: nodegroups.LastingTaints(plainest.Spec.Taints)}
		}
	}
	for key, n := range t.nodePools {
		switch {
		case inhabited[key]:
		case n.Left.IsZero():
			n.Left = now
			t.nodePools[key] = n
		case now.Sub(n.Left) >= nodePoolMemory:
			delete(t.nodePools, key)
		}
	}
}

// isElsewhere reports whether the group's earlier nodes were in none of the tracker's pools and match none of the
// current pools.
func (t *Tracker) isElsewhere(group string, owned []OwnedGroups) bool {
	m := t.memory[group]
	return m.Pool == "" && len(m.Seen) > 0 && !slices.ContainsFunc(owned, func(c OwnedGroups) bool { return slices.ContainsFunc(m.Seen, c.Groups.mayHave) })
}

// Shared returns a node that may be in several groups, and the groups' names. node is "" if there is no such node.
func (t *Tracker) Shared() (node string, groups []string) {
	for name, known := range t.members.byName {
		if len(known.groups) > 1 && (node == "" || name < node) {
			node, groups = name, known.groups
		}
	}
	return node, groups
}

// Stuck returns the names of the nodes that the autoscaler marked for removal and did not remove. Their marks count no
// more.
func (t *Tracker) Stuck() []string { return t.members.stuck }

// seeAgain is the minimum time between two reads of a group's node templates. In a large cluster, one read takes long.
const seeAgain = 10 * time.Second

// see remembers the templates of the pool's nodes, by group. A group without nodes keeps its templates.
func (t *Tracker) see(c *OwnedGroups, now time.Time) {
	byGroup := map[string][]*corev1.Node{}
	for _, node := range c.Nodes {
		names, _ := t.members.groupsOf(node)
		for _, name := range names {
			byGroup[name] = append(byGroup[name], node)
		}
	}
	grown := now.Add(-max(t.provision, c.Graces.Provision))
	for name, nodes := range byGroup {
		m := t.memory[name]
		if m == nil || m.Pool == c.Groups.pool && !now.Before(t.seen[name]) && now.Before(t.seen[name].Add(seeAgain)) {
			continue
		}
		if m.Pool == c.Groups.pool && len(m.Seen) > 0 {
			// Nodes younger than the provisionGrace do not count, because they may have startup taints.
			nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool { return !n.CreationTimestamp.Time.Before(grown) })
		}
		if templates := nodegroups.SettledTemplates(nodes, grown, now); len(templates) > 0 {
			m.Pool, m.Seen, t.seen[name] = c.Groups.pool, templates, now
		}
	}
}
