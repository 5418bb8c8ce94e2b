package nodegroups

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// firstGrace replaces a longer provisionGrace for the first node of a group without known templates. After firstGrace,
// the node's taints no longer count as startup taints.
const firstGrace = 3 * time.Minute

// ReasonStarting is the reason of a group that is Growing because existing nodes are not usable yet.
var ReasonStarting = Reason{Code: "NodesStarting", Sentence: "nodes of the pool exist and are not ready yet"}

// nodeSet holds the nodes of a group and their startup taints. It is used to derive the nodes' templates and to find
// the starting nodes.
type nodeSet struct {
	nodes []*corev1.Node
	grace time.Duration
	now   time.Time
	// expected are the resources that a new node may list later: those of the group's templates. devices are those that a
	// node may never list (Facts.Devices).
	expected, devices corev1.ResourceList
	// startupTaints has the startup taints of each new node. A startup taint is a taint that no template and no older
	// node of the group has. Older nodes that have startup taints themselves are ignored. There is no list of startup
	// taints, because CNI agents, AKS's nodeInitializationTaints and GPU operators can use any key.
	startupTaints map[*corev1.Node][]corev1.Taint
	// until is when a taint next stops counting as a startup taint without an event; zero if never.
	until time.Time
}

// nodeSet finds the startup taints of the nodes at the time now. seen are the templates of earlier nodes of the group,
// and template is the group's configured template, or nil.
func (f *Facts) nodeSet(nodes []*corev1.Node, seen []NodeTemplate, template *corev1.Node, now time.Time) *nodeSet {
	var lasting []corev1.Taint
	var expected NodeTemplate
	for i := range seen {
		lasting = append(lasting, seen[i].Taints...)
		expected.raise(seen[i].Allocatable)
	}
	if template != nil {
		lasting = append(lasting, LastingTaints(template.Spec.Taints)...)
		expected.raise(template.Status.Allocatable)
	}
	k := &nodeSet{nodes: nodes, grace: f.ProvisionGrace, now: now, expected: expected.Allocatable, devices: f.Devices}
	isYoung := func(node *corev1.Node) bool { return now.Before(node.CreationTimestamp.Add(f.ProvisionGrace)) }
	if !slices.ContainsFunc(nodes, func(node *corev1.Node) bool { return isYoung(node) && IsTainted(node) }) {
		return k
	}
	known := len(seen) > 0 || template != nil
	k.startupTaints = map[*corev1.Node][]corev1.Taint{}
	for _, node := range slices.SortedStableFunc(slices.Values(nodes), func(a, b *corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }) {
		grace := f.ProvisionGrace
		if !known {
			grace = min(grace, firstGrace)
		}
		late := node.CreationTimestamp.Add(grace)
		added := slices.DeleteFunc(LastingTaints(node.Spec.Taints), func(t corev1.Taint) bool { return has(lasting, t) })
		startup := slices.DeleteFunc(slices.Clone(added), func(t corev1.Taint) bool { return stays(&t) })
		if len(startup) == 0 || !now.Before(late) {
			known, lasting = known || !isYoung(node) || !IsStarting(node), append(lasting, added...)
			continue
		}
		k.startupTaints[node] = startup
		k.until = Earliest(k.until, late)
	}
	return k
}

func has(taints []corev1.Taint, taint corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return sameTaint(t, taint) })
}

// isStarting reports whether the node is not usable yet.
func (k *nodeSet) isStarting(node *corev1.Node) bool {
	return len(k.startupTaints[node]) > 0 || IsStarting(node)
}

// taints returns the node's taints without its startup taints.
func (k *nodeSet) taints(node *corev1.Node) []corev1.Taint {
	startup := k.startupTaints[node]
	if len(startup) == 0 {
		return node.Spec.Taints
	}
	return slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return has(startup, t) })
}

// startWith counts the nodes that are starting and not being removed. A node counts only until k.grace after its
// creation. Until then, a node that was ready and became unready counts, too, because it may become ready again. If any
// node counts, a CanGrow or Full group becomes Growing. An Unknown group keeps its state, but IsGrowing returns true
// for the group.
func (g *Group) startWith(k *nodeSet) {
	var until time.Time
	for _, node := range k.nodes {
		if late := node.CreationTimestamp.Add(k.grace); k.isStarting(node) && !IsLeaving(node) && k.now.Before(late) {
			g.Starting++
			until = Earliest(until, late)
		}
	}
	if g.Starting > 0 && g.State == Unknown {
		g.Until = Earliest(Earliest(g.Until, until), k.until)
	}
	if g.Starting == 0 || g.State != Full && g.State != CanGrow {
		return
	}
	detail := g.Reason.Detail
	g.State, g.Reason = Growing, ReasonStarting.With("%d of %d nodes", g.Starting, len(k.nodes))
	if detail != "" {
		g.Reason.Detail = detail + ", " + g.Reason.Detail + " starting"
	}
	g.Until = Earliest(Earliest(g.Until, until), k.until)
}

// IsGrowing reports whether the group has ordered or starting nodes.
func (g *Group) IsGrowing() bool {
	return g.State == Growing || g.State == Unknown && g.Starting > 0
}

// Missing returns how many nodes the group may get before it has as many usable nodes as its maximum. It counts nodes
// that are ordered or starting, and also nodes that are broken. The group must have a maximum.
func (g *Group) Missing() int { return max(0, *g.MaxNodes-g.Usable) }
