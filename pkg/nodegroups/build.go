package nodegroups

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
)

const (
	// Remembered is for how long a Group remembers orders and spells.
	Remembered = time.Hour
	// orderInterval thins out a group's orders. maxSpells and maxServed bound its spells and its services.
	orderInterval        = time.Minute
	maxSpells, maxServed = 20, 8
)

// Facts are the inputs to the view of one pool.
type Facts struct {
	// Nodes are the pool's existing nodes.
	Nodes []*corev1.Node
	// Source derives the status of a regular pool; nil for a burst pool.
	Source Source
	// Provider is the state of a burst pool's provider.
	Provider breaker.Status
	// Template returns the configured node template of the named node group, or nil if none is configured. The function
	// may itself be nil.
	Template func(group string) *corev1.Node
	// Served returns what daemons leave of a node that took a pod older than the node, and when it last did (Service). If
	// it took none, the list is nil. The function may itself be nil.
	Served func(node *corev1.Node) (corev1.ResourceList, time.Time)
	// Devices are resources that nodes can offer without listing them, because a DeviceClass maps them to devices.
	Devices corev1.ResourceList
	// ProvisionGrace is how long after its creation a node that is not usable yet counts as starting.
	ProvisionGrace time.Duration
}

// Build returns the view of the pools at the time now, in the order of the pool list. before is the previous view. If a
// pool or group has the same state in both views, it keeps its Since.
func Build(pools []Facts, before *View, now time.Time) *View {
	view := &View{Pools: make([]Pool, len(pools)), Built: now}
	for i := range pools {
		p, facts := &view.Pools[i], &pools[i]
		p.count(facts.Nodes)
		if facts.Source == nil {
			var until time.Time
			p.NodeTemplates, until = facts.nodeSet(facts.Nodes, nil, nil, now).templates()
			view.TemplatesUntil = Earliest(view.TemplatesUntil, until)
			p.Places = places(facts.Nodes)
			p.Provider, p.Until = facts.Provider, facts.Provider.Next
			continue
		}
		old := &before.Pools[i]
		j := facts.Source.Status(facts.Nodes, now)
		p.Scans = j.Scans
		p.Groups = make([]Group, len(j.Groups))
		// Whether a group that was not there before is new. Else, it may have another name.
		isNew := len(old.Groups) > 0 && !slices.ContainsFunc(old.Groups, func(g Group) bool {
			return !slices.ContainsFunc(j.Groups, func(now GroupStatus) bool { return now.Name == g.Name })
		})
		if p.Known = now; len(old.Groups) > 0 && !old.Known.IsZero() {
			p.Known = old.Known
		}
		for k := range j.Groups {
			until := p.Groups[k].build(&j.Groups[k], old.group(j.Groups[k].Name), isNew, facts, now)
			view.TemplatesUntil = Earliest(view.TemplatesUntil, until)
			j.Groups[k] = p.Groups[k].GroupStatus // starting nodes may have changed the group's state
		}
		j = j.Summarized()
		p.State, p.Reason, p.Until, p.Since = j.State, j.Reason, j.Until, now
		if old.State == p.State && !old.Since.After(now) {
			p.Since = old.Since
		}
	}
	return view
}

// places returns the keys of the place labels (IsPlaceLabel) on the nodes.
func places(nodes []*corev1.Node) map[string]bool {
	found := map[string]bool{}
	for _, node := range nodes {
		for key := range node.Labels {
			if IsPlaceLabel(key) {
				found[key] = true
			}
		}
	}
	return found
}

func (p *Pool) count(nodes []*corev1.Node) {
	p.Nodes = len(nodes)
	for _, node := range nodes {
		if IsLeaving(node) {
			p.Leaving++
		}
		if IsStarting(node) {
			p.Starting++
		}
		if IsTainted(node) {
			p.Tainted++
		}
	}
}

// group returns the group with the name, or nil.
func (p *Pool) group(name string) *Group {
	if i := slices.IndexFunc(p.Groups, func(g Group) bool { return g.Name == name }); i >= 0 {
		return &p.Groups[i]
	}
	return nil
}

// build fills the group from the source's status j. old is the same group in the previous view, or nil. If it is nil, isNew
// is set if there was no such group before. build returns when the group's node templates next change without an event; zero if never.
func (g *Group) build(j *GroupStatus, old *Group, isNew bool, facts *Facts, now time.Time) time.Time {
	g.GroupStatus = *j
	g.Nodes = len(j.Members)
	var template *corev1.Node
	if facts.Template != nil {
		template = facts.Template(j.Name)
	}
	set := facts.nodeSet(j.Members, j.Seen, template, now)
	if g.State != Unknown {
		g.Settled, g.LastActivity = string(g.State)+" "+g.Reason.Code, now
	}
	g.startWith(set)
	for _, node := range j.Members {
		g.Newest = Latest(g.Newest, node.CreationTimestamp.Time)
		if since := readySince(node); !set.isStarting(node) && since.After(g.LastReady) {
			g.LastReady = since
		}
		if !set.isStarting(node) && !IsLeaving(node) {
			g.Usable++
		}
	}
	var until time.Time
	g.NodeTemplates, until = set.templates()
	if len(j.Members) == 0 {
		g.NodeTemplates = j.Seen
	}
	g.Since, g.LastChanged, g.LimitsChanged, g.LastArrival = now, now, now, now
	if old != nil {
		g.follow(old, now)
	} else if g.State == Full {
		g.Spells = []Spell{{}}
	} else if isNew {
		g.Spells = []Spell{{To: now}} // before it was there, it could not grow
	}
	g.order()
	g.serve(j.Members, set, facts, now)
	g.LastActivity = Latest(g.LastActivity, g.LastScaleUp)
	return until
}

// follow copies times from old, the same group in the previous view. A time that a change has reset is not copied.
func (g *Group) follow(old *Group, now time.Time) {
	if old.State == g.State && !old.Since.After(now) {
		g.Since = old.Since
	}
	if g.State == Unknown {
		g.Settled, g.Limits = old.Settled, old.Limits
	}
	if g.Usable <= old.Usable && !g.LastReady.After(old.LastReady) && !old.LastArrival.IsZero() {
		g.LastArrival = old.LastArrival
	}
	came := g.Nodes > old.Nodes || g.Newest.After(old.Newest)
	arrived := old.Starting > 0 && g.Starting == 0 // the last starting node is usable, or late
	if g.Settled == old.Settled && !came && !arrived && !old.LastActivity.After(now) {
		g.LastActivity = old.LastActivity
	} else {
		g.LastActivity = now
	}
	if g.Version == old.Version && slices.EqualFunc(g.NodeTemplates, old.NodeTemplates, func(a, b NodeTemplate) bool { return a.key() == b.key() }) {
		g.LastChanged = old.LastChanged
	}
	if g.Limits == old.Limits && !old.LimitsChanged.IsZero() {
		g.LimitsChanged = old.LimitsChanged
	}
	g.Orders = slices.DeleteFunc(slices.Clone(old.Orders), func(at time.Time) bool { return now.Sub(at) > Remembered })
	g.Served = old.Served // serve replaces it
	g.Spells = slices.DeleteFunc(slices.Clone(old.Spells), func(s Spell) bool { return !s.To.IsZero() && now.Sub(s.To) > Remembered })
	switch n := len(g.Spells); {
	case g.State == Full && (n == 0 || !g.Spells[n-1].To.IsZero()):
		g.Spells = append(g.Spells[max(0, n-maxSpells+1):], Spell{From: now})
	case g.State != Full && n > 0 && g.Spells[n-1].To.IsZero():
		g.Spells[n-1].To = now
	}
}

// order adds the last scale-up to the orders, if it is new.
func (g *Group) order() {
	n := len(g.Orders)
	switch {
	case g.LastScaleUp.IsZero() || n > 0 && !g.LastScaleUp.After(g.Orders[n-1]):
	case n > 1 && g.LastScaleUp.Sub(g.Orders[n-2]) < orderInterval:
		g.Orders[n-1] = g.LastScaleUp
	default:
		g.Orders = append(g.Orders, g.LastScaleUp)
	}
}

// serve adds the services of the members to those of the view before.
func (g *Group) serve(members []*corev1.Node, set *nodeSet, facts *Facts, now time.Time) {
	if facts.Served == nil {
		return
	}
	type candidate struct {
		Service
		labels map[string]string
		taints []corev1.Taint
	}
	var all []candidate
	found := map[types.UID]bool{}
	for _, node := range members {
		if now.Sub(node.CreationTimestamp.Time) > Remembered {
			continue
		}
		if room, at := facts.Served(node); room != nil {
			all = append(all, candidate{Service{UID: node.UID, Made: node.CreationTimestamp.Time, At: at, Node: NodeTemplate{Allocatable: room}}, node.Labels, set.taints(node)})
			found[node.UID] = true
		}
	}
	for _, s := range g.Served {
		if !found[s.UID] {
			all = append(all, candidate{s, s.Node.Labels, s.Node.Taints})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(b.Made.Compare(a.Made), b.At.Compare(a.At), cmp.Compare(a.UID, b.UID))
	})
	g.Served = nil
	for _, c := range all {
		if len(g.Served) == maxServed {
			break
		}
		if !slices.ContainsFunc(g.Served, func(s Service) bool {
			return !s.At.Before(c.At) && s.Node.isOf(c.labels, c.taints) && covers(s.Node.Allocatable, c.Node.Allocatable)
		}) {
			room := c.Node.Allocatable
			c.Node = *newNodeTemplate(c.labels, c.taints, nil)
			c.Node.Allocatable = room
			g.Served = append(g.Served, c.Service)
		}
	}
}

// covers reports whether a has at least as much of everything as b.
func covers(a, b corev1.ResourceList) bool {
	for name, amount := range b {
		if mine := a[name]; mine.Cmp(amount) < 0 {
			return false
		}
	}
	return true
}
