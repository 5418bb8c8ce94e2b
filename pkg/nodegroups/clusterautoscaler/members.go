package clusterautoscaler

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// members follows which nodes each group has. The status is written at the end of a loop, with the targets as after the loop's own
// orders; what the autoscaler removes is tainted first, deleted seconds later, and out of the target only then. The nodes know earlier
// that a group at its maximum is not, for long: they correct the status.
type members struct {
	looks   int
	writes  int // of the status
	byName  map[string]*member
	leaving map[string]int   // by group: nodes that are being taken away
	lost    map[string][]int // by group: how many statuses had been written when each node vanished that may be in the target still, the oldest first
	strays  map[place]int    // nodes that went since the last status, of places in none of its groups
	targets map[string]int   // by group, of the last status
	names   []string         // of the groups of the last status that told of them
	groups  map[place][]string
	before  map[string]inhabitants // by group: what another tracker saw; nil once there was a look
}

type member struct {
	look   int // at which it was last there
	claim  int // at which it was last in a pool that is judged by the groups
	made   time.Time
	place  place
	groups []string
}

// lostFor is after how many statuses a node that vanished is out of the target, whatever the target says: the first may have begun before
// it vanished.
const lostFor = 2

func newMembers() *members {
	return &members{byName: map[string]*member{}, leaving: map[string]int{}, lost: map[string][]int{}, strays: map[place]int{}, targets: map[string]int{}, groups: map[place][]string{}}
}

// written takes in a new status. What its targets fell by is no longer to come.
func (m *members) written(groups []nodeGroup) {
	for p, n := range m.strays {
		for i := range groups {
			if name := groups[i].Name; p.holds(name) {
				m.lose(name, n, m.writes)
			}
		}
	}
	clear(m.strays)
	m.writes++
	names, targets := make([]string, len(groups)), make(map[string]int, len(groups))
	for i := range groups {
		name, target := groups[i].Name, groups[i].Health.CloudProviderTarget
		names[i], targets[name] = name, target
		lost := m.lost[name]
		if before, known := m.targets[name]; known && target < before {
			lost = lost[min(before-target, len(lost)):]
		}
		for len(lost) > 0 && m.writes-lost[0] >= lostFor {
			lost = lost[1:]
		}
		m.lost[name] = lost
	}
	m.targets = targets
	m.are(names)
	for name := range m.lost {
		if _, known := targets[name]; !known || len(m.lost[name]) == 0 {
			delete(m.lost, name)
		}
	}
}

// are takes in which groups there are. While there is no status, they are those of the last one.
func (m *members) are(names []string) {
	m.names = names
	clear(m.groups)
}

// look takes in all nodes of the cluster.
func (m *members) look(nodes []*corev1.Node) {
	m.looks++
	clear(m.leaving)
	for _, node := range nodes {
		known := m.byName[node.Name]
		if known == nil {
			known = &member{}
			m.byName[node.Name] = known
		}
		known.look, known.made, known.place = m.looks, node.CreationTimestamp.Time, placeOf(node)
		known.groups = m.groupsAt(known.place)
		if nodegroups.IsLeaving(node) {
			for _, name := range known.groups {
				m.leaving[name]++
			}
		}
	}
	for name, known := range m.byName {
		if known.look == m.looks {
			continue
		}
		delete(m.byName, name)
		groups := m.groupsAt(known.place) // there may be others than when it was there
		for _, group := range groups {
			m.lose(group, 1, m.writes)
		}
		if len(groups) == 0 && known.place != (place{}) {
			m.strays[known.place]++
		}
	}
	if m.before != nil {
		m.compare()
	}
}

// unclaimed returns, of the nodes, those of groups that have no node in the claims.
func (m *members) unclaimed(claims []Claim, nodes []*corev1.Node) []*corev1.Node {
	claimed, all := map[string]bool{}, 0
	for i := range claims {
		all += len(claims[i].Nodes)
		for _, node := range claims[i].Nodes {
			known := m.byName[node.Name]
			if known == nil {
				continue
			}
			known.claim = m.looks
			for _, name := range known.groups {
				claimed[name] = true
			}
		}
	}
	if all == len(nodes) {
		return nil
	}
	var rest []*corev1.Node
	for _, node := range nodes {
		if known := m.byName[node.Name]; known.claim != m.looks && !slices.ContainsFunc(known.groups, func(name string) bool { return claimed[name] }) {
			rest = append(rest, node)
		}
	}
	return rest
}

// scaleSets is what stands before the name of the scale set in a node's providerID.
const scaleSets = "/virtualMachineScaleSets/"

// place is what a node says of the group that it is in: its scale set or, without one, its agent pool and size.
type place struct{ scaleSet, agentPool, size string }

func placeOf(node *corev1.Node) place {
	if i := strings.Index(node.Spec.ProviderID, scaleSets); i >= 0 {
		name, _, _ := strings.Cut(node.Spec.ProviderID[i+len(scaleSets):], "/")
		return place{scaleSet: name}
	}
	for _, label := range agentPoolLabels {
		if agentPool, ok := node.Labels[label]; ok {
			return place{agentPool: agentPool, size: node.Labels[corev1.LabelInstanceTypeStable]}
		}
	}
	return place{}
}

// holds reports whether nodes of the place are in the group with the name.
func (p place) holds(group string) bool {
	if p.scaleSet != "" {
		return strings.EqualFold(p.scaleSet, group)
	}
	_, sku, _ := strings.Cut(group, "/")
	return isVMSS(p.agentPool, group) || isVirtualMachines(p.agentPool, group) && strings.EqualFold(sku, p.size) || isWindowsVMSS(p.agentPool, group)
}

// groupsOf returns the node groups that the node is in, and whether it says where it is at all.
func (m *members) groupsOf(node *corev1.Node) (names []string, told bool) {
	p := placeOf(node)
	return m.groupsAt(p), p != (place{})
}

// groupsAt returns the node groups that nodes of the place are in. They are looked up once for each status.
func (m *members) groupsAt(p place) []string {
	found, ok := m.groups[p]
	if ok || p == (place{}) {
		return found
	}
	for _, name := range m.names {
		if p.holds(name) {
			found = append(found, name)
		}
	}
	m.groups[p] = found
	return found
}

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
	m.are(slices.Sorted(maps.Keys(groups)))
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
	m.lost[name] = append(m.lost[name], slices.Repeat([]int{writes}, min(max(nodes, 0), maxLost))...)
}

// lostSince are how many of the group's nodes vanished since the last status, since the one before it, and so on.
func (m *members) lostSince(name string) []int {
	var counts []int
	for _, writes := range m.lost[name] { // the oldest first
		if counts == nil {
			counts = make([]int, m.writes-writes+1)
		}
		counts[m.writes-writes]++
	}
	return counts
}
