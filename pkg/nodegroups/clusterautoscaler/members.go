package clusterautoscaler

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// members tracks the nodes of each group. At the end of a loop, the autoscaler writes its status with the target sizes
// after that loop's scale-ups. To remove a node, the autoscaler taints the node, deletes it seconds later, and only
// then lowers the target. Therefore the nodes show that a group is below its maximum before the status shows it.
type members struct {
	observations int
	writes       int // how many statuses the autoscaler has written
	byName       map[string]*member
	leaving      map[string]int   // by group: how many nodes are being removed
	stuckAt      time.Time        // when the next node becomes stuck; zero if none does
	stuck        []string         // the names of the nodes whose removal was given up
	removals     map[string][]int // by group: one entry for each deleted node that the target may still include, with the value of writes at its deletion, the oldest first
	strays       map[place]int    // by place, if the place is in no group of the last status: the number of nodes that were deleted since that status
	targets      map[string]int   // by group: the target size in the last status
	names        []string         // the groups of the last readable status
	groups       map[place][]string
	before       map[string]inhabitants // by group: the restored summary of the nodes that another tracker saw; nil after the first call of observe
}

type member struct {
	seenAt  int // the last observation in which the node existed
	ownedAt int // the last observation in which the node was in a pool whose source is the autoscaler
	made    time.Time
	place   place
	groups  []string
	pool    string    // the last pool in which the node was, if its source is the autoscaler; empty for Karpenter's nodes
	marked  time.Time // when the autoscaler marked the node for removal, by our clock if that was seen; zero without a mark
}

// removalTimeout is how long the autoscaler may take to remove a node that it has marked, and on which no pod is
// terminating. If a removal fails, or the autoscaler is killed,
// the mark may stay for ever (kubernetes/autoscaler#5657).
const removalTimeout = 15 * time.Minute

// mayBeIn returns the groups, or the name for nodes without a known group.
func (k *member) mayBeIn(groups []string) []string {
	if !k.place.isKnown(groups) && k.pool != "" {
		return []string{unplaced(k.pool)}
	}
	return groups
}

// changes counts nodes of a group that are being removed, and deleted nodes that the group's target may still include.
type changes struct{ leaving, lost int }

func (c changes) plus(o changes) changes { return changes{c.leaving + o.leaving, c.lost + o.lost} }

func (m *members) of(group string) changes { return changes{m.leaving[group], len(m.removals[group])} }

// unplaced returns the name under which members counts the pool's nodes whose group is unknown. No group has this name.
func unplaced(pool string) string { return "\x00" + pool }

// removalStatuses is the number of statuses after a node's deletion until the target no longer includes the node. The
// first status may still include it, because its loop may have begun before the deletion.
const removalStatuses = 2

func newMembers() *members {
	return &members{byName: map[string]*member{}, leaving: map[string]int{}, removals: map[string][]int{}, strays: map[place]int{}, targets: map[string]int{}, groups: map[place][]string{}}
}

// written records a new status. If a group's target fell by n, written drops the group's n oldest removals.
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
		if groups[i].odd != nil {
			target = m.targets[name]
		}
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
	for name, lost := range m.removals {
		if strings.HasPrefix(name, unplaced("")) {
			lost = slices.DeleteFunc(lost, func(writes int) bool { return m.writes-writes >= removalStatuses })
			m.removals[name], targets[name] = lost, 0
		}
		if _, known := targets[name]; !known || len(lost) == 0 {
			delete(m.removals, name)
		}
	}
}

// are sets the names of the groups. While no status can be read, the names from the last readable status stay.
func (m *members) are(names []string) {
	m.names = names
	clear(m.groups)
}

// observe records the nodes of the cluster at the time now. pools has the pools of nodes, by the node's name.
// draining is as Tracker.Draining.
func (m *members) observe(nodes []*corev1.Node, pools map[string]string, draining func(node string) bool, now time.Time) {
	m.observations++
	clear(m.leaving)
	m.stuck, m.stuckAt = nil, time.Time{}
	for _, node := range nodes {
		known := m.byName[node.Name]
		marked, byAutoscaler := nodegroups.MarkedAt(node)
		if known == nil {
			known = &member{marked: marked}
			m.byName[node.Name] = known
		}
		if !byAutoscaler {
			known.marked = time.Time{}
		} else if known.marked.IsZero() || known.marked.After(now) {
			known.marked = now
		}
		known.seenAt, known.made, known.place = m.observations, node.CreationTimestamp.Time, placeOf(node)
		known.groups = m.groupsAt(known.place)
		if name := pools[node.Name]; name != "" && node.Labels[nodegroups.KarpenterNodePoolLabel] == "" {
			known.pool = name
		}
		if !nodegroups.IsLeaving(node) {
			continue
		}
		if draining != nil && draining(node.Name) {
			known.marked = now // the time for the VM begins when the node is empty
		}
		if end := known.marked.Add(removalTimeout); byAutoscaler && node.DeletionTimestamp == nil {
			if !now.Before(end) {
				m.stuck = append(m.stuck, node.Name)
				continue
			}
			m.stuckAt = nodegroups.Earliest(m.stuckAt, end)
		}
		for _, name := range known.mayBeIn(known.groups) {
			m.leaving[name]++
		}
	}
	for name, known := range m.byName {
		if known.seenAt == m.observations {
			continue
		}
		delete(m.byName, name)
		groups := m.groupsAt(known.place) // not known.groups: a newer status may list other groups
		for _, group := range known.mayBeIn(groups) {
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

// unowned returns the nodes that are in none of the owned pools. It leaves out nodes whose group also has a node in an
// owned pool.
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

// place identifies a node's group. On Azure, it has the scale set or, without a scale set, agent pool and size. On
// other clouds, it has the kind and the name of what manages the node, and on GKE the zone.
type place struct{ scaleSet, agentPool, size, kind, name, zone string }

// Kinds of what manages nodes on other clouds: an EKS node group, a GKE node pool, and a MachineSet or another owner of
// Cluster API's Machines, whose kind has the annotation capiOwnerKind.
const (
	eksLabel, eks                = "eks.amazonaws.com/nodegroup", "EKS"
	gkeLabel, gke                = "cloud.google.com/gke-nodepool", "GKE"
	capiOwnerKind, capiOwnerName = "cluster.x-k8s.io/owner-kind", "cluster.x-k8s.io/owner-name"
)

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
	if name := node.Labels[eksLabel]; name != "" {
		return place{kind: eks, name: name}
	}
	if name := node.Labels[gkeLabel]; name != "" {
		return place{kind: gke, name: name, zone: node.Labels[corev1.LabelTopologyZone]}
	}
	if name := node.Annotations[capiOwnerName]; name != "" {
		return place{kind: node.Annotations[capiOwnerKind], name: name}
	}
	return place{}
}

// holds reports whether nodes of the place are in the named group.
func (p place) holds(group string) bool {
	switch {
	case p.scaleSet != "":
		return strings.EqualFold(p.scaleSet, group)
	case p.kind != "":
		return p.isManaged(group)
	}
	_, sku, _ := strings.Cut(group, "/")
	return isVMSS(p.agentPool, group) || isVirtualMachines(p.agentPool, group) && strings.EqualFold(sku, p.size) || isWindowsVMSS(p.agentPool, group)
}

// isManaged reports whether nodes of the place are in the named group of a cloud other than Azure. Sources: the cluster
// autoscaler's providers. An EKS node group's Auto Scaling group is eks-NAME-UUID. A GKE node pool has in each zone the
// instance group …/zones/ZONE/instanceGroups/gke-CLUSTER-NAME-HASH-grp. With Cluster API, a group is
// KIND/NAMESPACE/NAME, and the name of a MachineDeployment's MachineSet is that of the MachineDeployment and a suffix.
func (p place) isManaged(group string) bool {
	base := path.Base(group)
	switch p.kind {
	case eks:
		id, found := strings.CutPrefix(base, "eks-"+p.name+"-")
		return found && len(id) == 36 && strings.Count(id, "-") == 4
	case gke:
		name, found := strings.CutSuffix(base, "-grp")
		end := strings.LastIndex(name, "-")
		return found && end > 0 && strings.HasPrefix(name, "gke-") && strings.HasSuffix(name[:end], "-"+p.name) &&
			(p.zone == "" || strings.Contains(group, "/zones/"+p.zone+"/"))
	}
	suffix, found := strings.CutPrefix(p.name, base+"-")
	return strings.HasPrefix(group, p.kind+"/") && base == p.name ||
		strings.HasPrefix(group, "MachineDeployment/") && p.kind == "MachineSet" && found && !strings.Contains(suffix, "-")
}

// groupsOf returns the node groups that the node may be in. placed reports whether the node's providerID or labels
// identify its group.
func (m *members) groupsOf(node *corev1.Node) (names []string, placed bool) {
	p := placeOf(node)
	names = m.groupsAt(p)
	return names, p.isKnown(names)
}

// isKnown reports whether the place identifies the node's group. groups are the groups of the place. A name on another
// cloud that matches no group may be cut.
func (p place) isKnown(groups []string) bool {
	return p != (place{}) && (p.kind == "" || len(groups) > 0)
}

// groupsAt returns the node groups of the place. It caches the groups until the next status.
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

// maxRemovals limits how many deleted nodes one call of removed can record. The limit is needed because a restored
// state can name any number of deleted nodes.
const maxRemovals = 20_000

// inhabitants summarizes a group's nodes for the published state. There, the names of all nodes would take too much
// space.
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
			in.newest = nodegroups.Latest(in.newest, known.made)
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

// compare records how many nodes of each group were deleted while no tracker ran. It subtracts the number of remaining
// nodes from the remembered number. Remaining nodes are those created no later than the newest remembered node.
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

// removed records that this many nodes of the group were deleted. writes is the value of members.writes when the
// tracker noticed it.
func (m *members) removed(name string, nodes, writes int) {
	m.removals[name] = append(m.removals[name], slices.Repeat([]int{writes}, min(max(nodes, 0), maxRemovals))...)
}

// removedSince returns the numbers of deleted nodes of the group as Group.Removed has them. The first number is for the
// time since the last status, the second for the time between the last two statuses, and so on.
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
