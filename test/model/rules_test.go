package model

import (
	"maps"
	"slices"
	"strings"
	"time"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// settings has the configuration.
type settings struct {
	staleAfter, unknownGrace, newPodDelay, wait, hold time.Duration
	maxPods                                           int
	v2                                                bool
	pools                                             []poolSettings
}

// poolSettings has the configuration of one regular pool.
type poolSettings struct {
	name                        string
	mode                        string // of its nodes
	agentPool                   string // the agent pool in its selector, or ""
	pattern                     string // the prefix of the names of its groups, or ""
	provision, backoff, decline time.Duration
}

// byNodes reports whether only nodes show which groups the pool has.
func (p *poolSettings) byNodes() bool { return p.agentPool == "" && p.pattern == "" }

const (
	backoffMemory = 5 * time.Minute
	lasting       = 15 * time.Minute // provisionGrace of all pools
	noCreditEnds  = 1000 * time.Hour // a staleAfter with which no pod runs out of credit, which the model does not know
	sizeTold      = 30 * time.Second
	firstNode     = 3 * time.Minute // how long the taints of a group's first node may be startup taints
)

// podKind is a pod for which the gate decides.
type podKind struct {
	disk      string // "" asks for none
	agentPool string // "" asks for none
	tolerates bool
	cpu       int64
	virtual   bool // selects the virtual node itself
	hostNet   bool
	init      bool
	burst     string
	priority  int32
	created   time.Time
	delay     time.Duration
	requested bool      // a ProvisioningRequest is to get it nodes
	since     time.Time // unschedulable
	noRoom    time.Time
	ignored   time.Time
	counts    bool // its owner counts failures
	pacing    pacing
}

// pacing has the facts about the virtual node and a pod's owner that pacing depends on.
type pacing struct {
	starting, refused     int  // pods of the owner
	trusted               bool // a pod has started recently, and none has been refused since
	peakPods, peakCPU     int  // the most that ran at once
	recentPods, recentCPU int
}

// history has everything that was observed, and the configuration. Its functions go through all of it.
type history struct {
	settings
	known map[string]*group // all groups, for their properties
	looks []look
	notes []note // the results of the rules for each look, so that they are not computed again
}

// note has the results of the rules for one look.
type note struct {
	believed, write, takeover, quiet bool
	seats                            []seat
	states                           map[seat]nodegroups.State
	whys                             map[seat]string
	moved                            map[seat]bool
	starting                         []seat             // groups with nodes that are starting
	sights                           map[string][]int   // by group
	memory                           map[string]memory  // by group
	rests                            map[int][]shape    // by pool: the kinds of nodes that are in none of the pool's groups
	kinds                            map[string][]shape // by group: the kinds of nodes that it has or had last
}

// seat is a group in a pool. A pool without known groups has one seat without a name.
type seat struct {
	pool  int
	group string
}

func (h *history) last() int { return len(h.looks) - 1 }

// believed reports whether the status at the look is readable and not stale.
func (h *history) believed(k int) bool {
	s := h.looks[k].status
	return s != nil && s.kind == "running" && h.looks[k].at.Sub(h.changed(k)) < h.staleTime(k)
}

// staleTime returns how long the status of the look may stay unchanged: for staleAfter, or for three loops if these take
// longer. Of the times of the last four loops, the second shortest counts, if none is longer than three minutes.
func (h *history) staleTime(k int) time.Duration {
	var times []time.Duration
	end := -1
	for j := k; j >= 0 && len(times) < 4; j-- {
		if h.isWrite(j) && h.isReadable(j) {
			if end >= 0 {
				times = append(times, h.looks[end].at.Sub(h.looks[j].at))
			}
			end = j
		}
		if h.isTakeover(j) {
			break
		}
	}
	slices.Sort(times)
	if len(times) < 4 || times[3] > 3*time.Minute {
		return h.staleAfter
	}
	return max(h.staleAfter, 3*times[1])
}

// changed returns when the status of the look was first seen.
func (h *history) changed(k int) time.Time {
	for ; k > 0 && h.isSame(k-1, k); k-- {
	}
	return h.looks[k].at
}

func (h *history) isSame(a, b int) bool {
	sa, sb := h.looks[a].status, h.looks[b].status
	return sa != nil && sb != nil && sa.serial == sb.serial || sa == nil && sb == nil
}

// isWrite reports whether the look showed a status for the first time.
func (h *history) isWrite(k int) bool {
	return h.looks[k].status != nil && (k == 0 || !h.isSame(k-1, k))
}

// isReadable reports whether the look showed a status with node groups.
func (h *history) isReadable(k int) bool {
	s := h.looks[k].status
	return s != nil && s.kind == "running"
}

// isTakeover reports whether the look showed that another autoscaler writes the status. It shows this if the status is
// Initializing, if the ConfigMap was recreated, or if the lastTransitionTime of the cluster's health changed without a
// change of the health.
func (h *history) isTakeover(k int) bool {
	s := h.looks[k].status
	if s == nil || !h.isWrite(k) {
		return false
	}
	if s.kind == "initializing" {
		return true
	}
	for j := k - 1; j >= 0; j-- {
		if before := h.looks[j].status; before != nil {
			if before.made != s.made {
				return true
			}
			break
		}
	}
	if s.kind == "garbage" {
		return false
	}
	for j := k - 1; j >= 0; j-- {
		if before := h.looks[j].status; before != nil && (before.kind == "running" || before.kind == "unhealthy") {
			return before.began != s.began && before.kind == s.kind // a change between healthy and unhealthy also changes the time
		}
	}
	return false
}

// findSights returns the looks up to k that showed a new readable status with the group. It starts after the last
// readable status without the group.
func (h *history) findSights(name string, k int) []int {
	var before []int
	if k > 0 {
		before = h.sights(name, k-1)
	}
	if !h.notes[k].write || !h.isReadable(k) {
		return before
	}
	if _, ok := h.looks[k].status.groups[name]; !ok {
		return nil
	}
	return append(slices.Clip(before), k)
}

func (h *history) sights(name string, k int) []int { return h.notes[k].sights[name] }

func (h *history) at(k int, name string) groupStatus { return h.looks[k].status.groups[name] }

func (s groupStatus) upcoming() int { return s.target - s.ready - s.unready - s.longUnregistered }

func (h *history) isIn(n *node, p int) bool {
	of, ok := h.poolOf(n.group)
	return ok && of == p
}

// nodesOf returns the group's nodes at the look.
func (h *history) nodesOf(name string, k int) []*node {
	var nodes []*node
	for i := range h.looks[k].nodes {
		if n := &h.looks[k].nodes[i]; n.group.name == name {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// pools returns the pools that the group may belong to, as far as is known at the look.
func (h *history) pools(name string, k int) []int {
	g := h.known[name]
	for p := range h.settings.pools {
		if s := &h.settings.pools[p]; s.pattern != "" && strings.HasPrefix(name, s.pattern) || s.agentPool != "" && s.agentPool == g.agentPool {
			return []int{p}
		}
	}
	if h.isOrphan(name, k) {
		var all []int
		for p := range h.settings.pools {
			if h.settings.pools[p].byNodes() {
				all = append(all, p)
			}
		}
		return all
	}
	if p, ok := h.poolOf(g); ok {
		return []int{p}
	}
	return nil
}

// isOrphan reports whether neither the configuration nor a present or earlier node shows which pool the group belongs
// to.
func (h *history) isOrphan(name string, k int) bool {
	g := h.known[name]
	for p := range h.settings.pools {
		if s := &h.settings.pools[p]; s.pattern != "" && strings.HasPrefix(name, s.pattern) || s.agentPool != "" && s.agentPool == g.agentPool {
			return false
		}
	}
	return len(h.nodesOf(name, k)) == 0 && len(h.remembered(name, k)) == 0
}

// poolOf returns the pool that the group's nodes are in, and whether there is one.
func (h *history) poolOf(g *group) (int, bool) {
	for p := range h.settings.pools {
		if h.settings.pools[p].mode == g.mode {
			return p, true
		}
	}
	return 0, false
}

// findSeats returns the groups of all pools at the look. They are the groups in the last readable status.
func (h *history) findSeats(k int) []seat {
	var seats []seat
	from := k
	for from > 0 && !h.isReadable(from) {
		from--
	}
	for p := range h.settings.pools {
		n := len(seats)
		if h.isReadable(from) {
			for _, name := range slices.Sorted(maps.Keys(h.looks[from].status.groups)) {
				if slices.Contains(h.pools(name, k), p) {
					seats = append(seats, seat{p, name})
				}
			}
		}
		stray := func(node *node) bool { return !slices.Contains(seats, seat{p, node.group.name}) }
		if len(seats) == n || !h.notes[k].believed && slices.ContainsFunc(h.nodesIn(p, k), stray) {
			seats = append(seats, seat{p, ""})
		}
	}
	return seats
}

// state returns the state of the group at look k, and the reason for it.
func (h *history) state(s seat, k int) (nodegroups.State, string) {
	if !h.notes[k].believed || s.group == "" {
		return nodegroups.Unknown, ""
	}
	p, g, now := &h.settings.pools[s.pool], h.at(k, s.group), h.looks[k].at
	upcoming, shrinking := h.upcoming(s.group, p.provision, k), h.shrinking(s.group, k)
	from, to, shown := h.backoff(s.group, k)
	inBackoff := !from.IsZero() && (shown || now.Sub(to) < backoffMemory)
	unhealthy := h.unhealthy(s.group, k)
	switch {
	case upcoming > 0 && now.Sub(h.progress(s.group, k)) < p.provision:
		return nodegroups.Growing, "Provisioning"
	case g.target >= g.max && upcoming > 0 && shrinking == "":
		return nodegroups.Full, "NodesMissing"
	case g.target >= g.max && shrinking != "":
		return nodegroups.CanGrow, shrinking
	case g.target >= g.max:
		return nodegroups.Full, "AtMax"
	case inBackoff && now.Sub(from) >= p.backoff:
		return nodegroups.Full, "Backoff"
	case !unhealthy.IsZero() && now.Sub(unhealthy) >= p.backoff:
		return nodegroups.Full, "Unhealthy"
	case inBackoff:
		return nodegroups.CanGrow, "BackingOff"
	case !unhealthy.IsZero():
		return nodegroups.CanGrow, "UnhealthyRecently"
	}
	return nodegroups.CanGrow, "BelowMax"
}

// upcoming returns the number of nodes that were ordered and are not usable. It subtracts usable nodes that the status
// does not count yet. After an order, as many unready nodes may be stopped VMs that start again as were ordered.
func (h *history) upcoming(name string, provision time.Duration, k int) int {
	g, usable := h.at(k, name), 0
	ordered := g.upcoming()
	if h.looks[k].at.Sub(h.rose(name, k)) < provision {
		ordered = max(ordered, min(ordered+g.unready, h.unmet(name, provision, k)))
	}
	for _, n := range h.nodesOf(name, k) {
		if n.ready && !n.startup && !n.leaving {
			usable++
		}
	}
	return min(ordered, g.target-usable)
}

// unmet returns how many nodes the group has ordered in one go and not got: no rise of its target came later than the
// provision time after the rise before, and each ready node more than there were since is one of the ordered.
func (h *history) unmet(name string, provision time.Duration, k int) int {
	var last time.Time
	n, most, sights := 0, 0, h.sights(name, k)
	for i, j := range sights {
		g, before := h.at(j, name), h.at(sights[max(i-1, 0)], name)
		if g.target > before.target {
			if n == 0 || h.looks[j].at.Sub(last) >= provision { // a new order
				n, most = 0, min(most, g.ready)
			}
			n, last = n+g.target-before.target, h.looks[j].at
		}
		for removed := before.target - g.target; removed > 0; removed-- {
			if most > g.ready {
				most-- // a ready node
			} else {
				n = max(0, n-1) // an order
			}
		}
		for ; most < g.ready; most++ {
			n = max(0, n-1)
		}
	}
	return n
}

// rose returns when the group's target last rose.
func (h *history) rose(name string, k int) time.Time {
	for _, j := range slices.Backward(h.sights(name, k)) {
		if h.rises(name, j) {
			return h.looks[j].at
		}
	}
	return time.Time{}
}

// isGivenUp reports whether the autoscaler has not removed the node for 15 minutes after it marked the node. A new
// leader does not know when the node was marked.
func (h *history) isGivenUp(n *node, k int) bool {
	if n.deleted {
		return false
	}
	since := k
	for since > 0 && !h.looks[since].restarted {
		before := slices.IndexFunc(h.looks[since-1].nodes, func(o node) bool { return o.name == n.name && o.leaving })
		if before < 0 {
			break
		}
		since--
	}
	return h.looks[k].at.Sub(h.looks[since].at) >= 15*time.Minute
}

// progress returns the last time at which the group's target or its number of nodes changed, the group had no upcoming
// node, or another autoscaler took over.
func (h *history) progress(name string, k int) time.Time {
	var progress time.Time
	sights := h.sights(name, k)
	for i, j := range sights {
		g := h.at(j, name)
		if i > 0 {
			if before := h.at(sights[i-1], name); g.target == before.target && g.upcoming() == before.upcoming() && g.upcoming() > 0 {
				continue
			}
		}
		progress = h.looks[j].at
	}
	for j := 1; j <= k; j++ {
		if h.notes[j].takeover && len(h.sights(name, j-1)) > 0 {
			progress = latest(progress, h.looks[j].at) // the new autoscaler waits for the nodes from the start
		}
	}
	return progress
}

// shrinking returns the reason why the target of the group may soon fall, or "". A node of the group is being removed,
// or a node is gone that the target may still count. The target may count it until it falls, for at most two writes of
// the status.
func (h *history) shrinking(name string, k int) string {
	for _, n := range h.nodesOf(name, k) {
		if n.leaving && !h.isGivenUp(n, k) {
			return "Shrinking"
		}
	}
	var lost []int // for each lost node, the number of writes since it was lost
	for j := 1; j <= k; j++ {
		if h.notes[j].write && h.isReadable(j) {
			sights := h.sights(name, j)
			if n := len(sights); n > 1 && sights[n-1] == j {
				fell := h.at(sights[n-2], name).target - h.at(j, name).target
				lost = lost[min(max(fell, 0), len(lost)):]
			}
			for i := range lost {
				lost[i]++
			}
			for len(lost) > 0 && lost[0] >= 2 {
				lost = lost[1:]
			}
			if len(sights) == 0 {
				lost = nil
			}
		}
		if h.looks[j].restarted && (len(h.sights(name, j-1)) == 0 || len(h.sights(name, j)) == 0) {
			lost = nil // nodes are remembered by their groups, and no status had this group
			continue
		}
		for _, n := range h.nodesOf(name, j-1) {
			if !h.exists(n.name, j) {
				lost = append(lost, 0)
			}
		}
	}
	if len(lost) > 0 {
		return "StatusBehind"
	}
	return ""
}

func (h *history) exists(node string, k int) bool {
	for i := range h.looks[k].nodes {
		if h.looks[k].nodes[i].name == node {
			return true
		}
	}
	return false
}

// sinceTakeover returns the given looks without those before the last takeover up to look k. The same autoscaler writes
// the status at all of them.
func (h *history) sinceTakeover(looks []int, k int) []int {
	began := 0
	for j := 0; j <= k; j++ {
		if h.notes[j].takeover {
			began = j
		}
	}
	for len(looks) > 0 && looks[0] < began {
		looks = looks[1:]
	}
	return looks
}

// unhealthy returns since when the group has been unhealthy without a break; zero if it is healthy. The autoscaler
// skips unhealthy groups.
func (h *history) unhealthy(name string, k int) time.Time {
	var from time.Time
	for _, j := range h.sinceTakeover(h.sights(name, k), k) {
		if !h.at(j, name).unhealthy {
			from = time.Time{}
		} else if from.IsZero() {
			from = h.looks[j].at
		}
	}
	return from
}

// backoff returns when the group was first and last seen in its latest backoff, and whether the status shows the
// backoff now.
func (h *history) backoff(name string, k int) (from, to time.Time, shown bool) {
	all := h.sights(name, k)
	sights := h.sinceTakeover(all, k)
	before := all[:len(all)-len(sights)]
	last := 0
	for i, j := range sights {
		if i > 0 {
			before = append(before, sights[i-1])
		}
		if h.isRestartedBetween(last, j) {
			to = to.Truncate(time.Minute) // a restart keeps only the minute
		}
		last = j
		g := h.at(j, name)
		if n := len(before); n > 0 && g.target > h.at(before[n-1], name).target {
			from, to = time.Time{}, time.Time{}
		}
		if shown = g.backoff; shown {
			if from.IsZero() || h.looks[j].at.Sub(to) > backoffMemory {
				from = h.looks[j].at
			}
			to = h.looks[j].at
		}
	}
	if h.isRestartedBetween(last, k) {
		to = to.Truncate(time.Minute)
	}
	return from, to, shown
}

func (h *history) isRestartedBetween(j, k int) bool {
	for j++; j <= k; j++ {
		if h.looks[j].restarted {
			return true
		}
	}
	return false
}

// isStarting reports whether the node is starting: it is not usable yet, and is expected to be. startup has its startup
// taints.
func (h *history) isStarting(n *node, startup []string, k int) bool {
	if p, listed := h.poolOf(n.group); n.leaving || !listed || h.looks[k].at.Sub(n.created) >= h.settings.pools[p].provision {
		return false
	}
	return !n.ready || n.startup || len(startup) > 0
}

// findStarting returns the pool's groups with nodes that are starting.
func (h *history) findStarting(p, k int) []seat {
	var found []seat
	rest := h.rest(p, k)
	for _, n := range h.nodesIn(p, k) {
		of, startup := seat{p, n.group.name}, h.startupTaints(n, k)
		if slices.Contains(rest, n) {
			of.group, startup = "", h.startupAmong(n, rest, nil, k)
		}
		if h.isStarting(n, startup, k) {
			found = append(found, of)
		}
	}
	return found
}

// startupTaints returns the startup taints of the node: neither a present or earlier older node nor the template has
// them.
func (h *history) startupTaints(n *node, k int) []string {
	kinds := slices.Clone(h.remembered(n.group.name, k))
	if n.group.template != nil {
		kinds = append(kinds, templateOf(n.group))
	}
	return h.startupAmong(n, h.nodesOf(n.group.name, k), kinds, k)
}

// startupAmong returns the taints of the node that neither an older node among others nor one of the kinds has.
func (h *history) startupAmong(n *node, others []*node, kinds []shape, k int) []string {
	p, listed := h.poolOf(n.group)
	taints := n.taints()
	if !listed || len(taints) == 0 {
		return nil
	}
	now, grace, known := h.looks[k].at, h.settings.pools[p].provision, len(kinds) > 0
	lasting := slices.Clone(kinds)
	for _, o := range others {
		if o.created.Before(n.created) && len(h.startupAmong(o, others, kinds, k)) == 0 {
			lasting = append(lasting, o.shape(nil))
			known = known || o.ready && !o.startup || now.Sub(o.created) >= grace
		}
	}
	if !known {
		grace = min(grace, firstNode)
	}
	var startup []string
	for _, taint := range taints {
		has := slices.ContainsFunc(lasting, func(s shape) bool { return slices.Contains(s.taints, taint) })
		if !has && now.Sub(n.created) < grace {
			startup = append(startup, taint)
		}
	}
	return startup
}

// nodesIn returns the pool's nodes at the look.
func (h *history) nodesIn(p, k int) []*node {
	var nodes []*node
	for i := range h.looks[k].nodes {
		if n := &h.looks[k].nodes[i]; h.isIn(n, p) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// taints returns the node's taints, except for those that are known to be temporary.
func (n *node) taints() []string {
	var taints []string
	if n.group.kind.tainted {
		taints = append(taints, "dedicated")
	}
	if n.startupTaint {
		taints = append(taints, "startupTaint")
	}
	return taints
}

// shape is a kind of node: the properties that matter to pods.
type shape struct {
	group     string
	disk      string
	agentPool string
	taints    []string
	cpu       int64
}

func (n *node) shape(without []string) shape {
	taints := slices.DeleteFunc(n.taints(), func(t string) bool { return slices.Contains(without, t) })
	return shape{group: n.group.name, disk: n.group.kind.disk, agentPool: n.group.agentPool, cpu: n.group.kind.cpu, taints: taints}
}

func templateOf(g *group) shape {
	return (&node{group: &group{agentPool: g.agentPool, kind: *g.template}}).shape(nil)
}

// rest returns the nodes of a pool that are in none of its known groups at the look. They count as one group, because
// without a status the autoscaler's groups are unknown.
func (h *history) rest(p, k int) []*node {
	return slices.DeleteFunc(h.nodesIn(p, k), func(n *node) bool { return slices.Contains(h.notes[k].seats, seat{p, n.group.name}) })
}

// restKinds returns the kinds of the nodes that rest returns.
func (h *history) restKinds(p, k int) []shape {
	var kinds []shape
	nodes := h.rest(p, k)
	for _, n := range nodes {
		kinds = append(kinds, h.sized(n.shape(h.startupAmong(n, nodes, nil, k)), n, k))
	}
	return sameSize(kinds)
}

// sized returns the kind s, without its size if the node has not been ready for sizeTold. Before that, the node may not
// report its full size.
func (h *history) sized(s shape, n *node, k int) shape {
	if !n.ready || n.startup || h.looks[k].at.Sub(n.readyAt) < sizeTold {
		s.cpu = 0
	}
	return s
}

// sameSize gives kinds with the same group and taints the same size.
func sameSize(kinds []shape) []shape {
	for i := range kinds {
		for j := range kinds {
			if kinds[i].group == kinds[j].group && slices.Equal(kinds[i].taints, kinds[j].taints) {
				kinds[i].cpu = max(kinds[i].cpu, kinds[j].cpu)
			}
		}
	}
	return kinds
}

// kindsOf returns the kinds of the group's nodes or, if it has no node, the remembered kinds.
func (h *history) kindsOf(name string, k int) []shape {
	var kinds []shape
	for _, n := range h.nodesOf(name, k) {
		kinds = append(kinds, h.sized(n.shape(h.startupTaints(n, k)), n, k))
	}
	if len(kinds) == 0 {
		return h.remembered(name, k)
	}
	return sameSize(kinds)
}

// memory has the kinds of the nodes that a group last had, and when they were recorded.
type memory struct {
	kinds []shape
	at    time.Time
}

func (h *history) remembered(name string, k int) []shape { return h.notes[k].memory[name].kinds }

// remember returns the memory of the group at look k. It counts only nodes that are older than provisionGrace or, if
// the group has no memory yet, at least three minutes old. The memory is updated at most every ten seconds. It is
// dropped when the status no longer has the group.
func (h *history) remember(name string, k int) memory {
	var before memory
	if k > 0 {
		before = h.notes[k-1].memory[name]
	}
	l := &h.looks[k]
	g := h.known[name]
	p, listed := h.poolOf(g)
	if h.isReadable(k) {
		if _, ok := l.status.groups[name]; !ok {
			return memory{}
		}
	} else if len(h.sights(name, k)) == 0 {
		return before
	}
	if len(before.kinds) > 0 && l.at.Sub(before.at) < 10*time.Second && !l.restarted {
		return before
	}
	grown := lasting
	if listed {
		grown = max(grown, h.settings.pools[p].provision)
	}
	for _, age := range []time.Duration{grown, firstNode} {
		var kinds []shape
		for _, n := range h.nodesOf(name, k) {
			if old := l.at.Sub(n.created); n.ready && !n.startup && (old > grown || age == firstNode && old >= age) {
				kinds = append(kinds, h.sized(n.shape(nil), n, k))
			}
		}
		if len(kinds) > 0 {
			return memory{sameSize(kinds), l.at}
		}
		if len(before.kinds) > 0 {
			break
		}
	}
	return before
}

// fits reports whether a node of the kind would run the pod.
func (s *shape) fits(pod *podKind) bool {
	return (pod.disk == "" || pod.disk == s.disk) && (pod.agentPool == "" || pod.agentPool == s.agentPool) &&
		(len(s.taints) == 0 || pod.tolerates && len(s.taints) == 1 && s.taints[0] == "dedicated") && (s.cpu == 0 || pod.cpu <= s.cpu) && !pod.virtual
}

// applicable reports whether the pod could use nodes of the group, as far as is known at the look.
func (h *history) applicable(s seat, k int, pod *podKind) bool {
	if p := &h.settings.pools[s.pool]; pod.agentPool != "" && p.agentPool != "" && pod.agentPool != p.agentPool {
		return false
	}
	if s.group == "" {
		kinds := h.notes[k].rests[s.pool]
		return len(kinds) == 0 || h.isUnread(k) || slices.ContainsFunc(kinds, func(s shape) bool { return s.fits(pod) }) // without known kinds, any pod may fit
	}
	g := h.known[s.group]
	kinds := h.notes[k].kinds[s.group]
	if len(kinds) > 0 {
		return slices.ContainsFunc(kinds, func(s shape) bool { return s.fits(pod) })
	}
	if g.template != nil {
		s := templateOf(g)
		return s.fits(pod)
	}
	return pod.agentPool == "" || g.windows || pod.agentPool == g.agentPool // otherwise the group's name contains its agent pool
}

// isUnread reports whether there has been no readable status yet.
func (h *history) isUnread(k int) bool {
	for ; k >= 0; k-- {
		if h.isReadable(k) {
			return false
		}
	}
	return true
}

// isOnItsWay reports whether the group has a node that is still starting, whatever the status says. That holds for
// every pod that the group fits. The nodes of a group are of one kind, apart from their startup taints.
func (h *history) isOnItsWay(s seat, k int) bool { return slices.Contains(h.notes[k].starting, s) }

// clock returns the time from which the pod waits for a scale-up.
func (h *history) clock(k int, pod *podKind) time.Time {
	start := latest(pod.noRoom, pod.created.Add(max(pod.delay, h.newPodDelay)), pod.ignored)
	for _, s := range h.notes[k].seats {
		if !h.applicable(s, k, pod) {
			continue
		}
		for j := k; j > 0 && h.looks[j].at.After(start); j-- {
			if h.notes[j].moved[s] || h.isOnItsWay(s, j-1) {
				start = h.looks[j].at
			}
		}
	}
	return start
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// moved reports whether the look showed activity of the group: its target rose, it got a node, or its state or the
// state's reason changed. States of Unknown are skipped: the state before them is compared with the state after them.
func (h *history) moved(s seat, j int) bool {
	if j == 0 {
		return true
	}
	for _, n := range h.nodesOf(s.group, j) {
		if !h.exists(n.name, j-1) {
			return true
		}
	}
	if h.notes[j].states[s] != nodegroups.Unknown {
		i := j - 1
		for i >= 0 && (h.notes[i].states[s] == nodegroups.Unknown || !h.notes[i].believed) {
			i--
		}
		if i < 0 || h.notes[i].states[s] != h.notes[j].states[s] || h.notes[i].whys[s] != h.notes[j].whys[s] {
			return true
		}
	}
	return h.notes[j].write && h.rises(s.group, j)
}

// rises reports whether the status of the look is the first with a higher target of the group.
func (h *history) rises(name string, j int) bool {
	sights := h.sights(name, j)
	n := len(sights)
	if n < 2 || sights[n-1] != j {
		return false
	}
	return h.at(j, name).target > h.at(sights[n-2], name).target
}

// fails reports whether the status of the look is the first that shows the group in backoff or unhealthy.
func (h *history) fails(name string, j int) bool {
	from, _, _ := h.backoff(name, j)
	return from.Equal(h.looks[j].at) || h.unhealthy(name, j).Equal(h.looks[j].at)
}

// waited returns how long the autoscaler has run since then. It leaves out periods in which it wrote no readable
// status.
func (h *history) waited(since time.Time, k int) time.Duration {
	var waited time.Duration
	end := h.looks[k].at
	for j := k; j >= 0 && end.After(since); j-- {
		from := latest(h.looks[j].at, since)
		if h.isReadable(j) && !h.isSilent(j, k) {
			waited += end.Sub(from)
		}
		end = from
	}
	return waited
}

// isSilent reports whether the status of look j stayed unchanged up to look k, for so long that the autoscaler did not
// run meanwhile.
func (h *history) isSilent(j, k int) bool {
	end := j
	for end < k && h.isSame(j, end) {
		end++
	}
	return h.looks[end].at.Sub(h.changed(j)) >= h.staleTime(j)
}

// lookedAt returns the time before which a pod must have begun to wait, so that four whole loops of the present
// autoscaler have considered it. Only loops in which no target rose and no group began to fail count. A loop begins
// when the previous loop has written its status, or later.
func (h *history) lookedAt(k int) time.Time {
	quiet, end := 0, -1
	for j := k; j >= 0; j-- {
		note := &h.notes[j]
		if note.write && h.isReadable(j) {
			if end >= 0 && h.notes[end].quiet {
				if quiet++; quiet == 4 {
					return h.looks[j].at
				}
			}
			end = j
		}
		if note.takeover {
			break
		}
	}
	return time.Time{}
}

// isQuiet reports whether no target rose and no group began to fail in the loop whose status the look shows.
func (h *history) isQuiet(j int) bool {
	for name := range h.looks[j].status.groups {
		if h.rises(name, j) || h.fails(name, j) {
			return false
		}
	}
	return true
}

// verdict is the expected decision of the gate, and the rule that made it.
type verdict struct {
	open bool
	why  string
}

// overridden returns the operator's override at the look, or "" if there is none or it has ended.
func (h *history) overridden(k int) string {
	o := h.looks[k].override
	if !o.until.IsZero() && h.looks[k].at.Sub(o.until) >= 0 {
		return ""
	}
	return o.gate
}

// decide returns the expected decision for the pod at look k. It adds pacing to decideForAnybody.
func (h *history) decide(pod *podKind, k, burstPods int) verdict {
	v := h.decideForAnybody(pod, k, burstPods)
	if !v.open || !pod.counts {
		return v
	}
	// At most three pods of an owner that counts failures may be refused. While pods start, there is no limit up to the
	// number that ran at once recently. Beyond that, two pods may be starting, or one if no pod has started recently.
	// Up to the number that ever ran at once, one pod at a time may try, whatever was refused.
	fits := func(pods, cpu int) bool { return burstPods+1 <= pods && burstPods+int(pod.cpu) <= cpu }
	p := pod.pacing
	switch {
	case p.trusted && fits(p.recentPods, p.recentCPU):
		return v
	case p.refused >= 3 && !fits(p.peakPods, p.peakCPU):
		return verdict{false, "FailureLimit"}
	case p.starting == 0:
		return v
	case p.starting >= 2, !p.trusted, p.refused+p.starting >= 3:
		return verdict{false, "RateLimited"}
	}
	return v
}

// decideForAnybody returns the expected decision without pacing, as for a pod whose owner counts no failures. An
// override does not change which pods, and how many, may burst.
func (h *history) decideForAnybody(pod *podKind, k, burstPods int) verdict {
	now := h.looks[k].at
	switch {
	case pod.burst == "Never":
		return verdict{false, "OptedOut"}
	case pod.burst != "Always" && (pod.hostNet || pod.init && !h.v2):
		return verdict{false, "Ineligible"}
	case h.maxPods > 0 && burstPods >= h.maxPods:
		return verdict{false, "Budget"}
	case h.overridden(k) != "":
		return verdict{h.overridden(k) == "Open", "Overridden" + h.overridden(k)}
	case pod.virtual:
		return verdict{true, "SelectedByPod"}
	}
	v := h.earlier(pod, k)
	if v.open {
		return v
	}
	if h.wait > 0 && !pod.since.IsZero() && now.Sub(pod.since) >= h.wait {
		return verdict{true, "WaitLimit"}
	}
	if h.hold > 0 && !pod.noRoom.IsZero() && now.Sub(pod.noRoom) >= h.hold {
		return verdict{true, "HoldLimit"}
	}
	return v
}

// earlier returns the decision that follows from the earlier pools.
func (h *history) earlier(pod *podKind, k int) verdict {
	why := "Full"
	for _, s := range h.notes[k].seats {
		if !h.applicable(s, k, pod) {
			continue
		}
		if h.isOnItsWay(s, k) {
			return verdict{false, "Starting"}
		}
		switch h.notes[k].states[s] {
		case nodegroups.Growing:
			return verdict{false, "Growing"}
		case nodegroups.Unknown:
			if h.looks[k].at.Sub(h.unknownSince(s, k)) < h.unknownGrace {
				return verdict{false, "Unknown"}
			}
			why = "UnknownTooLong"
		case nodegroups.CanGrow:
			if held := h.declines(s, k, pod); held != "" {
				return verdict{false, held}
			}
			why = "Declined"
		}
	}
	return verdict{true, why}
}

// declines returns why the group, which can grow, does not decline the pod, or "".
func (h *history) declines(s seat, k int, pod *podKind) string {
	switch h.notes[k].whys[s] {
	case "BackingOff", "UnhealthyRecently", "Shrinking", "StatusBehind":
		return "CanGrow: backing off" // the autoscaler cannot scale up the group yet, so that it does not decline
	}
	if pod.noRoom.IsZero() {
		return "CanGrow: it does not want room"
	}
	if pod.priority < -10 {
		return "CanGrow: priority"
	}
	clock := h.clock(k, pod)
	if h.waited(clock, k) < h.settings.pools[s.pool].decline {
		return "CanGrow: declineGrace"
	}
	if pod.requested && h.waited(clock, k) < h.settings.pools[s.pool].provision {
		return "CanGrow: ProvisioningRequest"
	}
	if !clock.Before(h.lookedAt(k)) {
		return "CanGrow: four loops"
	}
	return ""
}

// unknownSince returns since when the group has been Unknown without a break.
func (h *history) unknownSince(s seat, k int) time.Time {
	for ; k > 0 && h.notes[k-1].states[s] == nodegroups.Unknown; k-- {
	}
	return h.looks[k].at
}

// see adds a look and the results of the rules for it.
func (h *history) see(l look) {
	h.looks = append(h.looks, l)
	k := h.last()
	h.notes = append(h.notes, note{states: map[seat]nodegroups.State{}, whys: map[seat]string{}, moved: map[seat]bool{}, sights: map[string][]int{}, memory: map[string]memory{}, rests: map[int][]shape{}, kinds: map[string][]shape{}})
	n := &h.notes[k]
	n.write = h.isWrite(k)
	for name := range h.known {
		n.sights[name] = h.findSights(name, k)
	}
	n.believed, n.takeover = h.believed(k), h.isTakeover(k)
	for name := range h.known {
		n.memory[name] = h.remember(name, k)
	}
	n.quiet = n.write && h.isReadable(k) && h.isQuiet(k)
	for name := range h.known {
		n.kinds[name] = h.kindsOf(name, k)
	}
	n.seats = h.findSeats(k)
	for p := range h.settings.pools {
		n.rests[p] = h.restKinds(p, k)
		n.starting = append(n.starting, h.findStarting(p, k)...)
	}
	for _, s := range n.seats {
		n.states[s], n.whys[s] = h.state(s, k)
	}
	for _, s := range n.seats {
		n.moved[s] = h.moved(s, k)
	}
}
