package model

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// kind has the properties of a group's nodes that matter to pods.
type kind struct {
	disk    string
	tainted bool // for good
	cpu     int64
}

// group is a node group of the world, with its properties and its present state.
type group struct {
	name      string
	agentPool string
	mode      string // of its nodes
	size      string // if the group is one of several sizes of an agent pool
	kind      kind
	template  *kind // the nodeTemplate of its nodes in the configuration, or nil
	windows   bool  // its name does not contain its agent pool

	target, max        int
	backoff, unhealthy bool
	readyTaint         bool // its nodes have a taint while they start, which the configuration does not name
}

// node is a node as it is at one time.
type node struct {
	name         string
	group        *group
	created      time.Time
	readyAt      time.Time // when its condition Ready last changed
	ready        bool
	startup      bool // it has a startup taint of the cluster autoscaler
	startupTaint bool // it has the taint of readyTaint
	leaving      bool
	deleted      bool // by a deletion timestamp rather than by a taint
	passing      bool // it is cordoned, or being drained
}

// groupStatus is the autoscaler's status of one group.
type groupStatus struct {
	target, max                      int
	ready, unready, longUnregistered int
	backoff, unhealthy               bool
}

// moment is a status that the autoscaler wrote. Its kind is garbage, initializing, unhealthy (the whole cluster) or
// running.
type moment struct {
	serial int
	kind   string
	made   int // how often the ConfigMap had been recreated
	began  int // identifies the lastTransitionTime of the cluster's health
	groups map[string]groupStatus
}

// look is what could be observed at one time.
type look struct {
	at        time.Time
	status    *moment
	nodes     []node
	restarted bool // another scheduler, which has restored the published data, makes this look
	override  override
}

// world is a random cluster with its autoscaler. Its present is what the next look shows.
type world struct {
	r      *rand.Rand
	now    time.Time
	groups []*group
	nodes  []node
	status *moment
	serial int
	made   int
	began  int
	names  int
	calm   int  // the number of steps in which nothing happens but writes of the status
	quiet  bool // the autoscaler writes nothing
	sick   bool // the whole cluster is unhealthy
	mixed  bool // the status leaves out some groups at random

	override override
}

// override is an operator's override of the gate: Open, Closed or none. Without until, it never ends.
type override struct {
	gate  string
	until time.Time
}

func (w *world) chance(n int) bool { return w.r.IntN(n) == 0 }

func newWorld(r *rand.Rand) *world {
	w := &world{r: r, now: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), mixed: r.IntN(4) == 0}
	add := func(name, agentPool, mode, size string) *group {
		g := &group{name: name, agentPool: agentPool, mode: mode, size: size, max: 1 + r.IntN(3),
			kind: kind{disk: []string{"ssd", "hdd"}[r.IntN(2)], tainted: r.IntN(4) == 0, cpu: int64(2 + r.IntN(3))}, readyTaint: r.IntN(4) == 0}
		w.groups = append(w.groups, g)
		return g
	}
	add("aks-gen-1-vmss", "gen", "user", "")
	if r.IntN(2) == 0 {
		add("aks-gpu-2-vmss", "gpu", "user", "").kind.tainted = true
	}
	if r.IntN(3) == 0 {
		add("aks-spare-3-vmss", "spare", "user", "")
	}
	if r.IntN(3) == 0 {
		add("akswin", "win", "user", "").windows = true
	}
	switch r.IntN(4) {
	case 0:
		add("sys/Standard_D2", "sys", "system", "Standard_D2")
		add("sys/Standard_D4", "sys", "system", "Standard_D4")
	case 1, 2:
		add("aks-sys-4-vmss", "sys", "system", "")
	}
	if r.IntN(2) == 0 {
		g := add("aks-pat-5-vmss", "pat", "pattern", "")
		if r.IntN(2) == 0 {
			template := g.kind
			g.template = &template
		}
	}
	if r.IntN(4) == 0 {
		add("aks-lone-6-vmss", "lone", "lone", "") // its nodes are in no pool
	}
	for _, g := range w.groups {
		if r.IntN(3) > 0 {
			for g.target = r.IntN(g.max + 1); w.count(g) < g.target; {
				w.create(g)
			}
			for i := range w.nodes {
				if n := &w.nodes[i]; n.group == g && r.IntN(5) > 0 {
					n.created = w.now.Add(-time.Hour - time.Duration(i)*time.Second)
					n.readyAt, n.ready, n.startup, n.startupTaint = n.created.Add(time.Minute), true, false, false
				}
			}
		}
	}
	return w
}

// count returns the number of the group's nodes that are not being removed.
func (w *world) count(g *group) int {
	n := 0
	for i := range w.nodes {
		if w.nodes[i].group == g && !w.nodes[i].leaving {
			n++
		}
	}
	return n
}

// isListed reports whether the status lists the group, or no status lists groups. A group that the status does not list
// does not belong to the autoscaler.
func (w *world) isListed(g *group) bool {
	if w.status == nil || w.status.groups == nil {
		return true
	}
	_, ok := w.status.groups[g.name]
	return ok
}

func (w *world) exists(g *group) bool {
	return len(w.of(func(n *node) bool { return n.group == g })) > 0
}

func (w *world) create(g *group) {
	w.names++
	w.nodes = append(w.nodes, node{name: fmt.Sprintf("node-%d", w.names), group: g, created: w.now.Add(time.Duration(w.names)*time.Microsecond - time.Second), readyAt: w.now, startup: w.chance(3), startupTaint: g.readyTaint})
}

// of returns the indices of the nodes that match the condition.
func (w *world) of(condition func(*node) bool) []int {
	var found []int
	for i := range w.nodes {
		if condition(&w.nodes[i]) {
			found = append(found, i)
		}
	}
	return found
}

func (w *world) pick(found []int) *node { return &w.nodes[found[w.r.IntN(len(found))]] }

// passTime lets time pass, usually about as long as a loop of the autoscaler takes.
func (w *world) passTime() {
	d := time.Duration(5000+w.r.IntN(9000)) * time.Millisecond
	switch {
	case w.chance(40):
		d = time.Duration(w.r.IntN(1300)) * time.Second
	case w.chance(10):
		d = time.Duration(w.r.IntN(240)) * time.Second
	case w.chance(5):
		d = time.Duration(w.r.IntN(3000)) * time.Millisecond
	}
	w.now = w.now.Add(d)
}

// step makes random changes to the world, or none.
func (w *world) step() {
	if w.chance(30) {
		w.override = override{gate: []string{"", "Open", "Closed"}[w.r.IntN(3)]}
		if w.chance(2) {
			w.override.until = w.now.Add(time.Duration(w.r.IntN(900)) * time.Second)
		}
	} else if w.chance(10) {
		w.override = override{} // otherwise the override would decide nearly everything
	}
	if w.calm > 0 {
		w.calm--
		w.write(w.nodes)
		return
	}
	if w.chance(8) {
		w.calm = w.r.IntN(25)
	}
	before := slices.Clone(w.nodes)
	for range 1 + w.r.IntN(2) {
		w.change()
	}
	if !w.chance(4) {
		if w.chance(3) {
			before = w.nodes
		}
		w.write(before)
	}
}

func (w *world) change() {
	g := w.groups[w.r.IntN(len(w.groups))]
	switch w.r.IntN(16) {
	case 0, 1:
		g.target = min(g.target+1, g.max)
	case 2, 3, 4:
		for _, g := range w.groups {
			if w.count(g) < g.target && w.isListed(g) && w.chance(2) {
				w.create(g)
				break
			}
		}
	case 5, 6, 7:
		if found := w.of(func(n *node) bool { return !n.ready && !n.leaving }); len(found) > 0 {
			n := w.pick(found)
			n.ready, n.readyAt = true, w.now
		}
	case 8:
		if found := w.of(func(n *node) bool { return n.startup || n.startupTaint }); len(found) > 0 {
			n := w.pick(found)
			if n.startup {
				n.startup = false
			} else {
				n.startupTaint = false
			}
		}
	case 9:
		if found := w.of(func(n *node) bool { return !n.leaving }); len(found) > 0 {
			n := w.pick(found)
			n.leaving, n.deleted = true, w.chance(3)
		}
	case 10, 11:
		if found := w.of(func(n *node) bool { return n.leaving }); len(found) > 0 {
			n := w.pick(found)
			switch {
			case w.chance(6) && !n.deleted:
				n.leaving = false
			case w.chance(3):
				n.group.target = max(n.group.target-1, 0) // before the Node is deleted
			default:
				n.group.target = max(n.group.target-w.r.IntN(2), 0)
				w.remove(n.name)
			}
		}
	case 12:
		if w.chance(3) && len(w.nodes) > 0 { // lost
			w.remove(w.nodes[w.r.IntN(len(w.nodes))].name)
		} else {
			g.target = w.r.IntN(g.max + 1)
		}
	case 13:
		g.backoff = !g.backoff
	case 14:
		g.unhealthy = !g.unhealthy && w.chance(3)
		w.quiet = w.chance(10)
		if sick := w.chance(12); sick != w.sick {
			w.sick = sick
			w.began++
		}
	case 15:
		if len(w.nodes) > 0 {
			n := &w.nodes[w.r.IntN(len(w.nodes))]
			if n.ready && w.chance(4) {
				n.ready, n.readyAt = false, w.now
			} else {
				n.passing = !n.passing
			}
		}
	}
}

func (w *world) remove(name string) {
	w.nodes = slices.DeleteFunc(slices.Clone(w.nodes), func(n node) bool { return n.name == name })
}

// write lets the autoscaler write its status for the given nodes. It may also write nothing.
func (w *world) write(nodes []node) {
	if w.quiet {
		w.quiet = !w.chance(6)
		return
	}
	missing := w.status == nil
	switch n := w.r.IntN(150); {
	case n == 0 || missing && w.chance(2):
		w.status = nil
		return
	case n == 1:
		w.serial++
		w.status = &moment{serial: w.serial, kind: "garbage", made: w.made, began: w.began}
		return
	case n == 2:
		w.serial++
		w.began++
		w.status = &moment{serial: w.serial, kind: "initializing", made: w.made, began: w.began}
		return
	case n == 3: // the autoscaler restarts, and no look shows its status Initializing
		w.began++
	}
	if missing {
		w.made++
		w.began++
	}
	w.serial++
	m := &moment{serial: w.serial, kind: "running", made: w.made, began: w.began, groups: map[string]groupStatus{}}
	if w.sick {
		m.kind = "unhealthy"
	}
	for _, g := range w.groups {
		s := groupStatus{target: g.target, max: g.max, backoff: g.backoff, unhealthy: g.unhealthy}
		for i := range nodes {
			n := &nodes[i]
			switch {
			case n.group != g || n.leaving && !w.mixed:
			case n.ready && !n.startup:
				s.ready++
			case w.now.Sub(n.created) > 15*time.Minute:
				s.unready++
			}
		}
		if w.mixed && g.target > s.ready+s.unready && w.chance(5) {
			s.longUnregistered = 1
		}
		if !w.mixed || w.r.IntN(15) > 0 || w.exists(g) {
			m.groups[g.name] = s
		}
	}
	w.status = m
}

// look returns what can be observed of the world now.
func (w *world) look() look {
	l := look{at: w.now, nodes: slices.Clone(w.nodes), override: w.override}
	if w.status != nil {
		m := *w.status
		m.groups = maps.Clone(m.groups)
		l.status = &m
	}
	return l
}
