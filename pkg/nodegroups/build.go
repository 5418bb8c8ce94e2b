package nodegroups

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/breaker"
)

// Group.Orders has times of the last OrdersFor, at most one for each orderInterval.
const OrdersFor, orderInterval = time.Hour, time.Minute

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
	// Served returns the Room of a node that took a pod older than the node (Service), or nil if the node took none.
	Served func(node *corev1.Node) corev1.ResourceList
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
		for k := range j.Groups {
			until := p.Groups[k].build(&j.Groups[k], old.group(j.Groups[k].Name), facts, now)
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
	for i := range p.Groups {
		if p.Groups[i].Name == name {
			return &p.Groups[i]
		}
	}
	return nil
}

// build fills the group from the source's status j. old is the same group in the previous view, or nil. build returns
// when the group's node templates next change without an event; zero if never.
func (g *Group) build(j *GroupStatus, old *Group, facts *Facts, now time.Time) time.Time {
	g.GroupStatus = *j
	g.Nodes = len(j.Members)
	var template *corev1.Node
	if facts.Template != nil {
		template = facts.Template(j.Name)
	}
	set := facts.nodeSet(j.Members, j.Seen, template, now)
	g.Settled = settled(g.State, g.Reason.Code)
	g.startWith(set)
	for _, node := range j.Members {
		made := node.CreationTimestamp.Time
		if made.After(g.Newest) {
			g.Newest = made
		}
		if facts.Served != nil && made.After(g.Served.Made) {
			if room := facts.Served(node); room != nil {
				g.Served = Service{Made: made, At: now, Room: room}
			}
		}
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
	g.Since, g.LastChanged, g.LastSpecified, g.Known, g.LastArrival = now, now, now, now, now
	if g.State != Unknown {
		g.LastActivity = now
	}
	if old != nil {
		g.follow(old, now)
	}
	if n := len(g.Orders); g.LastScaleUp.After(now.Add(-OrdersFor)) && (n == 0 || g.LastScaleUp.Sub(g.Orders[n-1]) >= orderInterval) {
		g.Orders = append(g.Orders, g.LastScaleUp)
	}
	if g.LastScaleUp.After(g.LastActivity) {
		g.LastActivity = g.LastScaleUp
	}
	return until
}

// settled returns the state with the code of its reason, or "" for Unknown.
func settled(state State, code string) string {
	if state == Unknown {
		return ""
	}
	return string(state) + " " + code
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
	if slices.EqualFunc(g.NodeTemplates, old.NodeTemplates, func(a, b NodeTemplate) bool { return a.key() == b.key() }) {
		if g.Version == old.Version {
			g.LastChanged = old.LastChanged
		}
		if g.Limits == old.Limits && !old.LastSpecified.IsZero() {
			g.LastSpecified = old.LastSpecified
		}
	}
	if !old.Known.IsZero() {
		g.Known = old.Known
	}
	g.Orders = slices.DeleteFunc(slices.Clone(old.Orders), func(at time.Time) bool { return now.Sub(at) > OrdersFor })
	if !g.Served.Made.After(old.Served.Made) {
		g.Served = old.Served
	}
}
