package clusterautoscaler

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/capacity"
)

// members follows which nodes each group has. The status is written at the end of a loop, with the targets as after the loop's own
// orders; what the autoscaler removes is tainted first, deleted seconds later, and out of the target only then. The nodes know earlier
// that a group at its maximum is not, for long: they correct the status.
type members struct {
	looks   int
	writes  int // of the status
	byName  map[string]*member
	leaving map[string]int    // by group: nodes that are being taken away
	lost    map[string][]loss // by group: nodes that are gone and may be in the target still, the oldest first
	targets map[string]int    // by group, of the last status
	groups  map[place][]string
}

type member struct {
	look   int // at which it was last there
	groups []string
}

// loss is a node that vanished when so many statuses had been written.
type loss struct{ writes int }

// lostFor is after how many statuses a node that vanished is out of the target, whatever the target says: the first may have begun before
// it vanished.
const lostFor = 2

func newMembers() *members {
	return &members{byName: map[string]*member{}, leaving: map[string]int{}, lost: map[string][]loss{}, targets: map[string]int{}, groups: map[place][]string{}}
}

// written takes in a new status. What its targets fell by is no longer to come.
func (m *members) written(groups []nodeGroup) {
	m.writes++
	clear(m.groups) // there may be others now
	targets := make(map[string]int, len(groups))
	for i := range groups {
		name, target := groups[i].Name, groups[i].Health.CloudProviderTarget
		targets[name] = target
		lost := m.lost[name]
		if before, known := m.targets[name]; known && target < before {
			lost = lost[min(before-target, len(lost)):]
		}
		for len(lost) > 0 && m.writes-lost[0].writes >= lostFor {
			lost = lost[1:]
		}
		m.lost[name] = lost
	}
	m.targets = targets
	for name := range m.lost {
		if _, known := targets[name]; !known || len(m.lost[name]) == 0 {
			delete(m.lost, name)
		}
	}
}

// look takes in all nodes of the cluster.
func (m *members) look(nodes []*corev1.Node, groups []nodeGroup) {
	m.looks++
	clear(m.leaving)
	for _, node := range nodes {
		known := m.byName[node.Name]
		if known == nil {
			known = &member{}
			m.byName[node.Name] = known
		}
		known.look = m.looks
		known.groups, _ = m.groupsOf(node, groups)
		if capacity.IsLeaving(node) {
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
		for _, group := range known.groups {
			m.lost[group] = append(m.lost[group], loss{m.writes})
		}
	}
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

// groupsOf returns the node groups that the node is in, and whether it says where it is at all. Nodes of one place have the same: they are
// looked up once for each status.
func (m *members) groupsOf(node *corev1.Node, groups []nodeGroup) (names []string, told bool) {
	key := placeOf(node)
	if key == (place{}) {
		return nil, false
	}
	found, ok := m.groups[key]
	if ok {
		return found, true
	}
	for i := range groups {
		if key.holds(groups[i].Name) {
			found = append(found, groups[i].Name)
		}
	}
	m.groups[key] = found
	return found, true
}
