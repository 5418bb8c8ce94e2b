package clusterautoscaler

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// members tracks the nodes of each group. The autoscaler writes its status at the end of a loop, with the targets after
// the loop's own scale-ups. It taints a node, deletes it seconds later, and only then lowers the target. The nodes
// therefore show earlier than the status that a group is below its maximum.
type members struct {
	observations int
	writes       int // how many statuses the autoscaler has written
	byName       map[string]*member
	leaving      map[string]int   // by group: how many nodes are being removed
	removals     map[string][]int // by group: the value of writes at each deletion of a node that the target may still include, the oldest first
	strays       map[place]int    // by place that is in no group of the last status: how many nodes were deleted since
	targets      map[string]int   // by group, of the last status
	names        []string         // the groups of the last readable status
	groups       map[place][]string
	before       map[string]inhabitants // by group: the nodes that another tracker saw; nil after the first observe
}

type member struct {
	seenAt  int // the observation in which the node was last there
	ownedAt int // the observation in which it was last in a pool whose source is the autoscaler
	made    time.Time
	place   place
	groups  []string
}

// removalStatuses is the number of statuses after which a deleted node no longer counts in the target. The loop of the
// first of these statuses may have begun before the deletion.
const removalStatuses = 2

func newMembers() *members {
	return &members{byName: map[string]*member{}, leaving: map[string]int{}, removals: map[string][]int{}, strays: map[place]int{}, targets: map[string]int{}, groups: map[place][]string{}}
}

// written records a new status. A target that fell accounts for deleted nodes.
func (m *members) written(groups []nodeGroup) {
	for p, n := range m.strays {
		for i := range groups {
			if name := groups[i].Name; p.holds(name) {
				m.removed(name, n, m.writes)
			}
		}
	}
	clear(m.strays)
	m.writes++
	names, targets := make([]string, len(groups)), make(map[string]int, len(groups))
	for i := range groups {
		name, target := groups[i].Name, groups[i].Health.CloudProviderTarget
		names[i], targets[name] = name, target
		lost := m.removals[name]
		if before, known := m.targets[name]; known && target < before {
			lost = lost[min(before-target, len(lost)):]
		}
		for len(lost) > 0 && m.writes-lost[0] >= removalStatuses {
			lost = lost[1:]
		}
		m.removals[name] = lost
	}
	m.targets = targets
	m.are(names)
	for name := range m.removals {
		if _, known := targets[name]; !known || len(m.removals[name]) == 0 {
			delete(m.removals, name)
		}
	}
}

// are sets the names of the groups. While there is no status, the names of the last one stay.
func (m *members) are(names []string) {
	m.names = names
	clear(m.groups)
}

// observe records the nodes of the cluster.
func (m *members) observe(nodes []*corev1.Node) {
	m.observations++
	clear(m.leaving)
	for _, node := range nodes {
		known := m.byName[node.Name]
		if known == nil {
			known = &member{}
			m.byName[node.Name] = known
		}
		known.seenAt, known.made, known.place = m.observations, node.CreationTimestamp.Time, placeOf(node)
		known.groups = m.groupsAt(known.place)
		if nodegroups.IsLeaving(node) {
			for _, name := range known.groups {
				m.leaving[name]++
			}
		}
	}
	for name, known := range m.byName {
		if known.seenAt == m.observations {
			continue
		}
		delete(m.byName, name)
		groups := m.groupsAt(known.place) // a newer status may list other groups than those known when the node was there
		for _, group := range groups {
			m.removed(group, 1, m.writes)
		}
		if len(groups) == 0 && known.place != (place{}) {
			m.strays[known.place]++
		}
	}
	if m.before != nil {
		m.compare()
	}
}

// unowned returns the nodes in none of the owned pools, except for nodes of a group that has a node in one of these
// pools.
func (m *members) unowned(owned []OwnedGroups, nodes []*corev1.Node) []*corev1.Node {
	claimed, all := map[string]bool{}, 0
	for i := range owned {
		all += len(owned[i].Nodes)
		for _, node := range owned[i].Nodes {
			known := m.byName[node.Name]
			if known == nil {
				continue
			}
			known.ownedAt = m.observations
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
		if known := m.byName[node.Name]; known.ownedAt != m.observations && !slices.ContainsFunc(known.groups, func(name string) bool { return claimed[name] }) {
			rest = append(rest, node)
		}
	}
	return rest
}

// scaleSets precedes the name of the scale set in a node's providerID.
const scaleSets = "/virtualMachineScaleSets/"

// place identifies a node's group by the scale set or, without a scale set, by agent pool and size.
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

// holds reports whether nodes of the place are in the named group.
func (p place) holds(group string) bool {
	if p.scaleSet != "" {
		return strings.EqualFold(p.scaleSet, group)
	}
	_, sku, _ := strings.Cut(group, "/")
	return isVMSS(p.agentPool, group) || isVirtualMachines(p.agentPool, group) && strings.EqualFold(sku, p.size) || isWindowsVMSS(p.agentPool, group)
}

// groupsOf returns the node groups of the node, and whether the node shows its group at all.
func (m *members) groupsOf(node *corev1.Node) (names []string, placed bool) {
	p := placeOf(node)
	return m.groupsAt(p), p != (place{})
}

// groupsAt returns the node groups of the place. It looks them up once for each status.
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

// maxRemovals bounds the number of deleted nodes that removed records at once. A published state can have any number.
const maxRemovals = 20_000

// inhabitants summarizes a group's nodes for the published state, where all names would take too much space.
type inhabitants struct {
	nodes  int
	newest time.Time // when the newest node was created
}

// inhabitants returns the summary of each group's nodes.
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

// restore sets the groups that another tracker published.
func (m *members) restore(groups map[string]Group) {
	m.are(slices.Sorted(maps.Keys(groups)))
	m.writes, m.before = removalStatuses, map[string]inhabitants{}
	for name := range groups {
		g := groups[name]
		m.targets[name] = g.Target
		m.before[name] = inhabitants{g.Nodes, g.Newest}
		for i := min(len(g.Removed), removalStatuses) - 1; i >= 0; i-- { // the oldest first
			m.removed(name, g.Removed[i], m.writes-i)
		}
	}
}

// compare counts the nodes that were deleted while no tracker ran: the remembered number of nodes, minus the existing
// nodes that are not newer than the newest remembered node.
func (m *members) compare() {
	for name, before := range m.before {
		old := 0
		for _, known := range m.byName {
			if slices.Contains(known.groups, name) && !known.made.After(before.newest) {
				old++
			}
		}
		if slices.Contains(m.names, name) {
			m.removed(name, before.nodes-old, m.writes)
		}
	}
	m.before = nil
}

// removed records that this many nodes of the group were deleted. writes is the value of members.writes at that time.
func (m *members) removed(name string, nodes, writes int) {
	m.removals[name] = append(m.removals[name], slices.Repeat([]int{writes}, min(max(nodes, 0), maxRemovals))...)
}

// removedSince returns how many of the group's nodes were deleted since the last status, how many between that status
// and the one before it, and so on.
func (m *members) removedSince(name string) []int {
	var counts []int
	for _, writes := range m.removals[name] { // the oldest first
		if counts == nil {
			counts = make([]int, m.writes-writes+1)
		}
		counts[m.writes-writes]++
	}
	return counts
}
