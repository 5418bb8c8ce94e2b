package clusterautoscaler

import (
	"slices"
	"time"
)

// maxLost bounds how many losses are believed that another tracker knew of.
const maxLost = 20_000

// inhabitants are a group's nodes, as far as is remembered: a name for each of them would be too much.
type inhabitants struct {
	nodes  int
	newest time.Time // when the newest was made
}

// inhabitants are the groups' nodes, by group.
func (m *members) inhabitants() map[string]inhabitants {
	found := map[string]inhabitants{}
	for _, known := range m.byName {
		for _, name := range known.groups {
			in := found[name]
			in.nodes++
			if known.made.After(in.newest) {
				in.newest = known.made
			}
			found[name] = in
		}
	}
	return found
}

// restore takes over what another tracker knew of the groups.
func (m *members) restore(groups map[string]Group) {
	m.are(sortedKeys(groups))
	m.writes, m.before = lostFor, map[string]inhabitants{}
	for name := range groups {
		g := groups[name]
		m.targets[name] = g.Target
		m.before[name] = inhabitants{g.Nodes, g.Newest}
		for i := min(len(g.Lost), lostFor) - 1; i >= 0; i-- { // the oldest first
			m.lose(name, g.Lost[i], m.writes-i)
		}
	}
}

// compare takes in which nodes went while nobody looked: of those that were there, as many as there are fewer now that are not newer.
func (m *members) compare() {
	for name, before := range m.before {
		old := 0
		for _, known := range m.byName {
			if slices.Contains(known.groups, name) && !known.made.After(before.newest) {
				old++
			}
		}
		if slices.Contains(m.names, name) {
			m.lose(name, before.nodes-old, m.writes)
		}
	}
	m.before = nil
}

// lose takes in that as many of the group's nodes vanished when so many statuses had been written.
func (m *members) lose(name string, nodes, writes int) {
	m.lost[name] = append(m.lost[name], slices.Repeat([]loss{{writes}}, min(max(nodes, 0), maxLost))...)
}

// lostSince are how many of the group's nodes vanished since the last status, since the one before it, and so on.
func (m *members) lostSince(name string) []int {
	var counts []int
	for _, l := range m.lost[name] {
		since := m.writes - l.writes
		for len(counts) <= since {
			counts = append(counts, 0)
		}
		counts[since]++
	}
	return counts
}
