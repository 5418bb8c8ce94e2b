package clusterautoscaler

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// Claim is what a pool has: the groups that its configuration names, and its nodes.
type Claim struct {
	Source
	Nodes []*corev1.Node
}

// Look tells the tracker what each of the pools that it judges has, and which nodes exist, whenever that has changed. The kinds of a group's
// nodes, of any pool or none, are remembered for the time while it has none. A group of which neither the configuration nor a node, now or
// before, tells whose it is may be that of any pool that tells its groups by its nodes: it counts for all of them, so that one that is scaled to nothing is not taken
// for one that cannot grow. It is returned.
func (t *Tracker) Look(claims []Claim, nodes []*corev1.Node, now time.Time) (orphans []string) {
	t.members.look(nodes)
	pools := map[string]bool{}
	for i := range claims {
		pools[claims[i].Groups.pool] = true
		t.see(&claims[i], now)
	}
	t.see(&Claim{Nodes: t.members.unclaimed(claims, nodes)}, now)
	inhabited := map[string]bool{}
	for _, known := range t.members.byName {
		for _, name := range known.groups {
			inhabited[name] = true
		}
	}
	t.orphans = map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(t.memory)) { // those of the last status: while there is none, they are what there was
		named := slices.ContainsFunc(claims, func(c Claim) bool { return c.Groups.claim(name) })
		if !named && !inhabited[name] && !pools[t.memory[name].Pool] && !t.isElsewhere(name, claims) {
			t.orphans[name] = true
			orphans = append(orphans, name)
		}
	}
	return orphans
}

// isElsewhere reports whether the group's nodes were in no pool that the tracker judges, and would be in none of those that there are now.
func (t *Tracker) isElsewhere(group string, claims []Claim) bool {
	m := t.memory[group]
	return m.Pool == "" && len(m.Seen) > 0 && !slices.ContainsFunc(claims, func(c Claim) bool { return slices.ContainsFunc(m.Seen, c.Groups.mayHave) })
}

// Shared returns a node that may be in several groups, as far as it tells, with their names; "" if there is none.
func (t *Tracker) Shared() (node string, groups []string) {
	for name, known := range t.members.byName {
		if len(known.groups) > 1 && (node == "" || name < node) {
			node, groups = name, known.groups
		}
	}
	return node, groups
}

// seeAgain is how long the kinds of a group's nodes are not looked at again: in a large cluster that takes its time.
const seeAgain = 10 * time.Second

// see remembers the kinds of the pool's nodes by their groups. Groups that have none now keep what they had.
func (t *Tracker) see(c *Claim, now time.Time) {
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
			// What young nodes have that those before had not, they are about to lose.
			nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool { return !n.CreationTimestamp.Time.Before(grown) })
		}
		if shapes := nodegroups.SettledShapes(nodes, grown, now); len(shapes) > 0 {
			m.Pool, m.Seen, t.seen[name] = c.Groups.pool, shapes, now
		}
	}
}
