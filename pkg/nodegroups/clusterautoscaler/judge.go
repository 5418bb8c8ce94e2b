package clusterautoscaler

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// Names returns the names of the node groups in the status, sorted.
func (t *Tracker) Names() []string {
	names := make([]string, len(t.groups))
	for i := range t.groups {
		names[i] = t.groups[i].Name
	}
	sort.Strings(names)
	return names
}

// Claim is what a pool has: the groups that its configuration names, and its nodes.
type Claim struct {
	Groups Groups
	Nodes  []*corev1.Node
	// Provision is the pool's own grace, if that is longer than the tracker's.
	Provision time.Duration
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
	for _, name := range sortedKeys(t.memory) { // those of the last status: while there is none, they are what there was
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
	grown := now.Add(-max(t.graces.Provision, c.Provision))
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

// Source judges one pool by the tracker's status.
type Source struct {
	Tracker *Tracker
	Groups  Groups
	// Graces are those of the pool, without StaleAfter; nil for the tracker's.
	Graces *Graces
}

var _ nodegroups.Source = Source{}

// Judge implements capacity.Source.
func (s Source) Judge(nodes []*corev1.Node, now time.Time) nodegroups.Judgement {
	t := s.Tracker
	problem := t.problem
	if problem.Code == "" && t.stale(now) {
		problem = reasonStale
		problem.Detail = fmt.Sprintf("last change seen at %s", t.changed.UTC().Format(time.RFC3339))
	}
	j := nodegroups.Judgement{Attention: t.attention.is()}
	if problem.Code != "" {
		j.Groups = s.unknown(nodes, problem)
	} else {
		j.Groups = s.known(nodes, now)
		j.Until = t.changed.Add(t.graces.StaleAfter)
	}
	if slices.ContainsFunc(j.Groups, func(g nodegroups.Judged) bool { return len(g.Seen) == 0 }) {
		j.Until = nodegroups.Earliest(j.Until, nodegroups.SettlesAt(nodes, now)) // then it is known what the nodes of such a group are like
	}
	return j.Summarized()
}

// unknown are the pool's groups while there is no status: those that are remembered, each with its nodes, as if there were one, so that nothing
// happens to a group because the status was away for a while. As long as none was seen, there may be any.
func (s Source) unknown(nodes []*corev1.Node, problem nodegroups.Reason) []nodegroups.Judged {
	t := s.Tracker
	members, elsewhere, anywhere := s.split(nodes)
	var groups []nodegroups.Judged
	for _, name := range sortedKeys(t.memory) {
		if s.has(name, len(members[name]) > 0) || s.mayHave(name) {
			g := nodegroups.Judged{Name: name, State: nodegroups.Unknown, Reason: problem, Members: members[name]}
			if g.Reason.Detail = name; len(groups) == 0 && problem.Detail != "" { // said once
				g.Reason.Detail += ": " + problem.Detail
			}
			s.tell(&g)
			groups = append(groups, g)
		}
	}
	rest := nodegroups.Judged{State: nodegroups.Unknown, Reason: problem, Open: len(t.memory) == 0}
	if len(anywhere) > 0 {
		inhabited := func(name string) bool { return t.memory[name].Present > 0 }
		rest.Members = anywhere
		groups = s.spread(groups, rest, inhabited)
	}
	if rest.Members = elsewhere; len(elsewhere) > 0 || len(groups) == 0 {
		groups = append(groups, rest)
	}
	return groups
}

// known are the pool's groups by the status.
func (s Source) known(nodes []*corev1.Node, now time.Time) []nodegroups.Judged {
	t := s.Tracker
	members, elsewhere, anywhere := s.split(nodes)
	var groups []nodegroups.Judged
	for i := range t.groups {
		name := t.groups[i].Name
		if s.has(name, len(members[name]) > 0) || s.mayHave(name) {
			groups = append(groups, s.judged(&t.groups[i], members[name], now))
		}
	}
	if len(groups) == 0 {
		return s.none(nodes)
	}
	if len(anywhere) > 0 {
		groups = s.spread(groups, notScaled(anywhere), t.inhabited())
	}
	if len(elsewhere) > 0 {
		groups = append(groups, notScaled(elsewhere))
	}
	return groups
}

// inhabited returns a function that reports whether the group has nodes by the status.
func (t *Tracker) inhabited() func(string) bool {
	inhabited := map[string]bool{}
	for i := range t.groups {
		g := &t.groups[i]
		inhabited[g.Name] = g.Health.NodeCounts.Registered.Ready+g.Health.NodeCounts.Registered.Unready.Total > 0
	}
	return func(name string) bool { return inhabited[name] }
}

// notScaled is the group of nodes that no autoscaler adds to.
func notScaled(nodes []*corev1.Node) nodegroups.Judged {
	reason, most := reasonNotScaled, len(nodes)
	reason.Detail = fmt.Sprintf("%d nodes", most)
	return nodegroups.Judged{State: nodegroups.Full, Reason: reason, Members: nodes, MaxNodes: &most}
}

// none is what is said of a pool of which the status has no group.
func (s Source) none(nodes []*corev1.Node) []nodegroups.Judged {
	t := s.Tracker
	reason := reasonNoGroup
	reason.Detail = fmt.Sprintf("the status has %s", strings.Join(t.Names(), ", "))
	if len(t.groups) == 0 {
		reason.Detail = "the status has no node groups"
	}
	return []nodegroups.Judged{{State: nodegroups.Unknown, Reason: reason, Members: nodes}}
}

// mayHave reports whether nothing tells whose the group is, and it may be the pool's.
func (s Source) mayHave(group string) bool {
	return s.Tracker.orphans[group] && (s.Groups.byNodes() || s.Groups.mayName(group))
}

// has reports whether the group is the pool's, which may have nodes in it.
func (s Source) has(group string, hasNodes bool) bool {
	if len(s.Groups.patterns) > 0 {
		return s.Groups.claim(group)
	}
	return hasNodes || s.Groups.claim(group) || s.Tracker.memory[group].Pool == s.Groups.pool && s.Tracker.memory[group].Pool != ""
}

// split returns the pool's nodes by their groups, those in no group of the pool's, and those that do not say where they are.
func (s Source) split(nodes []*corev1.Node) (byGroup map[string][]*corev1.Node, elsewhere, anywhere []*corev1.Node) {
	byGroup = map[string][]*corev1.Node{}
	for _, node := range nodes {
		names, told := s.Tracker.members.groupsOf(node)
		its := false
		for _, name := range names {
			if s.has(name, true) {
				byGroup[name] = append(byGroup[name], node)
				its = true
			}
		}
		switch {
		case !told:
			anywhere = append(anywhere, node)
		case !its:
			elsewhere = append(elsewhere, node)
		}
	}
	return byGroup, elsewhere, anywhere
}

func (s Source) judged(g *nodeGroup, members []*corev1.Node, now time.Time) nodegroups.Judged {
	t := s.Tracker
	m := t.memory[g.Name]
	j := nodegroups.Judged{
		Name: g.Name, Members: members, Rose: m.Rose, Version: fmt.Sprintf("%d/%d/%d", g.Health.CloudProviderTarget, g.Health.MaxSize, t.generation),
		MaxNodes: &g.Health.MaxSize,
	}
	s.tell(&j)
	j.State, j.Reason, j.Until = t.judge(g, members, s.graces(), now)
	if j.State == nodegroups.Growing {
		j.Arriving = arriving(g, members)
	}
	switch j.Reason.Code {
	case reasonBackingOff.Code, reasonSkipped.Code, reasonShrinking.Code, reasonBehind.Code:
		j.Skipped = true
	}
	if t.orphans[g.Name] {
		j.Reason.Detail += " (it is not known yet whether it is this pool's)"
	}
	return j
}

// tell adds what is known of the group's nodes, those before and those to come.
func (s Source) tell(j *nodegroups.Judged) {
	if m := s.Tracker.memory[j.Name]; m.Pool == s.Groups.pool {
		j.Seen = m.Seen
	}
	if len(j.Members)+len(j.Seen) == 0 {
		j.New = &nodegroups.NewNodes{Choices: labelsOf(j.Name)}
	}
}

func (s Source) graces() Graces {
	if s.Graces != nil {
		return *s.Graces
	}
	return s.Tracker.graces
}

// spread gives the nodes that do not say which group they are in, those of the rest, to the groups that have none of the others and that are
// inhabited. Several such groups cannot be told apart: they are judged as one. If there are none, the rest is one more.
func (s Source) spread(groups []nodegroups.Judged, rest nodegroups.Judged, inhabited func(name string) bool) []nodegroups.Judged {
	var told, empty, homes []nodegroups.Judged
	for _, g := range groups {
		switch {
		case len(g.Members) > 0:
			told = append(told, g)
		case inhabited(g.Name):
			homes = append(homes, g)
		default:
			empty = append(empty, g)
		}
	}
	open := false
	if len(homes) > 0 {
		told = append(told, empty...)
	} else {
		homes, open = empty, len(empty) > 1 // which of them has the nodes is not known, and the others may get any
	}
	if len(homes) == 0 {
		return append(told, rest)
	}
	slices.SortFunc(homes, func(a, b nodegroups.Judged) int { return strings.Compare(a.Name, b.Name) }) // it is called so whatever comes first in the status
	one := nodegroups.Judgement{Groups: homes}.Summarized()
	all := nodegroups.Judged{State: one.State, Reason: one.Reason, Until: one.Until, Members: rest.Members, Open: open}
	names, versions, most := make([]string, len(homes)), make([]string, len(homes)), 0
	for i := range homes {
		if homes[i].MaxNodes != nil {
			most += *homes[i].MaxNodes // each is as the status has it
		}
		all.Arriving += homes[i].Arriving
		names[i], versions[i] = homes[i].Name, homes[i].Version
		if homes[i].Rose.After(all.Rose) {
			all.Rose = homes[i].Rose
		}
	}
	all.Name, all.Version, all.MaxNodes = strings.Join(names, ","), strings.Join(versions, ","), &most
	if homes[0].MaxNodes == nil {
		all.MaxNodes = nil // there is no status
	}
	return append(told, all)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// missing is how many nodes that were ordered have not come. What has come since the status was written is believed at once.
func missing(g *nodeGroup, members []*corev1.Node) int {
	usable := 0
	for _, node := range members {
		if !nodegroups.IsStarting(node) && !nodegroups.IsLeaving(node) {
			usable++
		}
	}
	return min(g.Health.upcoming(), g.Health.CloudProviderTarget-usable)
}

// arriving is how many of the missing nodes do not exist yet.
func arriving(g *nodeGroup, members []*corev1.Node) int {
	starting := 0
	for _, node := range members {
		if nodegroups.IsStarting(node) && !nodegroups.IsLeaving(node) {
			starting++
		}
	}
	return max(0, missing(g, members)-starting)
}

// judge returns the state of one node group, which has these nodes, and, if time alone changes it, when.
func (t *Tracker) judge(g *nodeGroup, members []*corev1.Node, graces Graces, now time.Time) (nodegroups.State, nodegroups.Reason, time.Time) {
	m := t.memory[g.Name]
	detail := func(r nodegroups.Reason, format string, args ...any) nodegroups.Reason {
		r.Detail = g.Name + ": " + fmt.Sprintf(format, args...)
		return r
	}
	size := fmt.Sprintf("%d of %d", g.Health.CloudProviderTarget, g.Health.MaxSize)
	atMax := g.Health.CloudProviderTarget >= g.Health.MaxSize
	upcoming := missing(g, members)
	late := m.Progress.Add(graces.Provision)
	backoffEnds := time.Time{}
	if g.ScaleUp.Status != scaleUpBackoff && !m.BackoffSeen.IsZero() {
		backoffEnds = m.BackoffSeen.Add(backoffMemory)
	}
	inBackoff := !m.BackoffSeen.IsZero() && (backoffEnds.IsZero() || now.Before(backoffEnds))
	backoffFull := m.BackoffSince.Add(graces.Backoff)
	// The autoscaler skips an unhealthy group like one in back-off.
	unhealthy, unhealthyFull := !m.UnhealthySince.IsZero(), m.UnhealthySince.Add(graces.Backoff)

	switch {
	case upcoming > 0 && now.Before(late):
		return nodegroups.Growing, detail(nodegroups.ReasonProvisioning, "%d to come, %s", upcoming, size), late
	case atMax && t.members.leaving[g.Name] > 0:
		return nodegroups.CanGrow, detail(reasonShrinking, "%d nodes, %s", t.members.leaving[g.Name], size), time.Time{}
	case atMax && len(t.members.lost[g.Name]) > 0:
		return nodegroups.CanGrow, detail(reasonBehind, "%d nodes, %s", len(t.members.lost[g.Name]), size), time.Time{}
	case upcoming > 0 && atMax:
		return nodegroups.Full, detail(reasonNodesMissing, "%d missing, %s", upcoming, size), time.Time{}
	case atMax:
		return nodegroups.Full, detail(reasonAtMax, "%s", size), time.Time{}
	case inBackoff && !now.Before(backoffFull):
		return nodegroups.Full, detail(reasonBackoff, "%s: %s", m.BackoffInfo.ErrorCode, m.BackoffInfo.ErrorMessage), backoffEnds
	case unhealthy && !now.Before(unhealthyFull):
		return nodegroups.Full, detail(reasonUnhealthy, "%s", size), time.Time{}
	case inBackoff && unhealthy:
		return nodegroups.CanGrow, detail(reasonBackingOff, "%s, %s, unhealthy", m.BackoffInfo.ErrorCode, size), nodegroups.Earliest(backoffFull, unhealthyFull)
	case inBackoff:
		return nodegroups.CanGrow, detail(reasonBackingOff, "%s, %s", m.BackoffInfo.ErrorCode, size), backoffFull
	case unhealthy:
		return nodegroups.CanGrow, detail(reasonSkipped, "%s", size), unhealthyFull
	default:
		return nodegroups.CanGrow, detail(reasonBelowMax, "%s", size), time.Time{}
	}
}
