package karpenter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Reasons of this source.
var (
	// ReasonNoResource is the reason in a cluster without Karpenter, or with one before 1.0.
	ReasonNoResource = nodegroups.Reason{Code: "NoKarpenter", Sentence: "the cluster serves no NodePools of karpenter.sh/v1, which is needed"}
	// ReasonMissing is the reason if the NodePool does not exist.
	ReasonMissing = nodegroups.Reason{Code: "NodePoolMissing", Sentence: "the pool's NodePool does not exist"}

	reasonUnreadable   = nodegroups.Reason{Code: "NodePoolUnreadable", Sentence: "the pool's NodePool cannot be read"}
	reasonDeleting     = nodegroups.Reason{Code: "NodePoolDeleting", Sentence: "the pool's NodePool is being deleted"}
	reasonNotCounted   = nodegroups.Reason{Code: "NodePoolNotCounted", Sentence: "Karpenter has not counted the NodePool's resources yet"}
	reasonNotReady     = nodegroups.Reason{Code: "NodePoolNotReady", Sentence: "the pool's NodePool is not ready"}
	reasonNodesMissing = nodegroups.Reason{Code: "NodesMissing", Sentence: "the pool's NodePool is at its limits and nodes never came"}
	reasonAtLimits     = nodegroups.Reason{Code: "AtLimits", Sentence: "the pool's NodePool is at its limits"}
	reasonReplicas     = nodegroups.Reason{Code: "FixedReplicas", Sentence: "the pool's NodePool has a fixed number of nodes"}
	reasonBelowLimits  = nodegroups.Reason{Code: "BelowLimits", Sentence: "the pool's NodePool is below its limits"}
	reasonBehind       = nodegroups.Reason{Code: "StatusBehind", Sentence: "the pool's NodePool lost a node that its status may still count"}
	reasonFailing      = nodegroups.Reason{Code: "LaunchFailing", Sentence: "the pool's NodePool fails to launch nodes and tries again"}
	reasonLaunchFails  = nodegroups.Reason{Code: "LaunchFailed", Sentence: "the pool's NodePool has failed to launch nodes for backoffGrace"}
	reasonDead         = nodegroups.Reason{Code: "KarpenterDead", Sentence: "Karpenter has stopped renewing its Lease"}
	reasonNoLimits     = nodegroups.Reason{Code: "NoLimits", Sentence: "the pool's NodePool has no limits"}
)

// Memory is the part of the tracker's state that the leader publishes, so that the next leader can restore it.
type Memory struct {
	// Outages are the periods in which the NodePool could not be read, or in which Karpenter did not use it.
	Outages []nodegroups.Outage `json:"pauses,omitempty"`
	// Renewed is when Karpenter's Lease was last seen to be renewed, if this is too long ago; zero otherwise.
	Renewed time.Time `json:"renewed,omitzero"`
	// Present is the number of the NodePool's nodes that are not being removed. Ordered is the largest number of
	// ordered nodes since Present last changed.
	Present int64 `json:"present"`
	Ordered int64 `json:"ordered"`
	// LastScaleUp is when Present last rose. Progress is the last time at which Present changed, Ordered rose, or no
	// ordered node was missing.
	LastScaleUp time.Time `json:"rose,omitzero"`
	Progress    time.Time `json:"progress,omitzero"`
	// Launches is the state of the NodePool's launches.
	Launches LaunchMemory `json:"launches,omitzero"`
}

// Tracker follows one NodePool and remembers facts that the object alone does not show. It is not safe for concurrent
// use.
type Tracker struct {
	graces   pool.Graces
	launches *Launches
	problem  nodegroups.Reason // why nodePool is nil; empty if it is set
	nodePool *nodePool
	own      []*corev1.Node // the NodePool's nodes
	// renewed is when Karpenter's Lease was last seen to be renewed; zero if it never was. A Lease of the age staleAfter
	// is too old.
	renewed    time.Time
	staleAfter time.Duration
	memory     Memory
}

// NewTracker returns a tracker that has not seen the NodePool yet.
func NewTracker(graces pool.Graces, launches *Launches) *Tracker {
	return &Tracker{graces: graces, launches: launches, problem: ReasonMissing}
}

// Memory returns the state to publish.
func (t *Tracker) Memory() Memory {
	m := t.memory
	m.Launches = t.launches.Memory()
	if t.nodePool == nil || t.nodePool.nodes() <= m.Present {
		m.Progress = time.Time{} // no node is missing: Restore replaces the zero time by the current time
	}
	return m
}

// Restore sets the tracker's state to a state that another tracker of the NodePool published. now is the current time.
func (t *Tracker) Restore(m Memory, now time.Time) {
	m.Progress = cmp.Or(m.Progress, now)
	t.memory = m
	t.launches.Restore(m.Launches)
}

// Lose records that the tracker has no usable NodePool from the time now on, for the given reason.
func (t *Tracker) Lose(reason nodegroups.Reason, now time.Time) {
	t.problem, t.nodePool, t.own = reason, nil, nil
	t.memory.Outages = nodegroups.OutageBegan(t.memory.Outages, now)
}

// Fail records that reading the NodePool failed at the time now.
func (t *Tracker) Fail(err error, now time.Time) {
	t.Lose(reasonUnreadable.With("%v", err), now)
}

// Observe records the NodePool, decoded from its JSON, and the nodes of the cluster at the time now. If the JSON cannot
// be decoded, Observe returns the error, and the pool becomes Unknown.
func (t *Tracker) Observe(object []byte, nodes []*corev1.Node, now time.Time) error {
	n, err := decode[nodePool](object, "NodePool")
	if err != nil {
		t.Fail(err, now)
		return err
	}
	t.problem, t.nodePool = nodegroups.Reason{}, n
	switch {
	case n.unused().Code != "":
		t.memory.Outages = nodegroups.OutageBegan(t.memory.Outages, now)
	case t.dead(now):
		t.memory.Renewed = cmp.Or(t.renewed, t.memory.Renewed)
		t.memory.Outages = nodegroups.OutageBegan(t.memory.Outages, t.memory.Renewed)
	default:
		t.memory.Renewed = time.Time{}
		t.memory.Outages = nodegroups.OutageEnded(t.memory.Outages, now)
	}
	before := t.own
	t.own = n.own(nodes)
	present, ordered := int64(len(t.own)), n.nodes()
	if t.memory.Progress.IsZero() { // nothing is remembered
		t.memory = Memory{Outages: t.memory.Outages, Present: present, Ordered: ordered, Progress: now}
	}
	m := &t.memory
	if lost(before, t.own) || present < m.Present {
		t.launches.nodeLeft(now)
	}
	if present > m.Present {
		m.LastScaleUp, m.Progress, m.Ordered = now, now, ordered
	}
	if ordered <= present || ordered > m.Ordered || present < m.Present {
		m.Progress, m.Ordered = now, ordered // the grace for missing nodes starts again
	}
	m.Present = present
	return nil
}

// unused returns why Karpenter does not use the NodePool now. It returns an empty reason if Karpenter uses the
// NodePool. The NodePool's limits are not checked.
func (n *nodePool) unused() nodegroups.Reason {
	switch {
	case n.Metadata.DeletionTimestamp != nil:
		return reasonDeleting
	case n.Status.Resources == nil:
		return reasonNotCounted
	case n.notReady() != "":
		return reasonNotReady
	}
	return nodegroups.Reason{}
}

// own returns the NodePool's nodes that are not being removed.
func (n *nodePool) own(nodes []*corev1.Node) []*corev1.Node {
	var own []*corev1.Node
	for _, node := range nodes {
		if node.Labels[nodegroups.KarpenterNodePoolLabel] == n.Metadata.Name && !nodegroups.IsLeaving(node) {
			own = append(own, node)
		}
	}
	return own
}

// lost reports whether a node of the list before is not in the list after.
func lost(before, after []*corev1.Node) bool {
	names := make(map[string]bool, len(after))
	for _, node := range after {
		names[node.Name] = true
	}
	return slices.ContainsFunc(before, func(n *corev1.Node) bool { return !names[n.Name] })
}

// Status implements nodegroups.Source. It counts all nodes that the NodePool had in the last call of Observe, including
// nodes that are in other pools.
func (t *Tracker) Status(nodes []*corev1.Node, now time.Time) nodegroups.SourceStatus {
	j := nodegroups.SourceStatus{Scans: nodegroups.Scans{Uncounted: true, Outages: t.memory.Outages}}
	g := nodegroups.GroupStatus{State: nodegroups.Unknown, Reason: t.problem, Members: nodes}
	if t.problem.Code == "" {
		g = t.groupStatus(nodes, now)
		if g.State == nodegroups.CanGrow && t.dead(now) { // a NodePool at its limits stays Full
			g.State, g.Reason, g.Until = nodegroups.Unknown, reasonDead.With("NodePool %s: last renewed at %s", g.Name, t.memory.Renewed.UTC().Format(time.RFC3339)), time.Time{}
		}
	}
	j.Groups = []nodegroups.GroupStatus{g}
	return j.Summarized()
}

// ObserveLease records when Karpenter's Lease was last seen to be renewed; zero if it never was. A Lease that is not
// renewed for staleAfter shows that Karpenter is dead. Callers must call ObserveLease or ForgetLease before Observe.
func (t *Tracker) ObserveLease(renewed time.Time, staleAfter time.Duration) {
	t.renewed, t.staleAfter = renewed, staleAfter
}

// ForgetLease records that Karpenter has no Lease, or that the Lease cannot be read. It is then unknown whether
// Karpenter is dead, whatever the last leader published.
func (t *Tracker) ForgetLease() { t.renewed, t.memory.Renewed = time.Time{}, time.Time{} }

// dead reports whether Karpenter has not renewed its Lease for too long. A new leader that has not seen a renewal goes
// by what the last leader published.
func (t *Tracker) dead(now time.Time) bool {
	renewed := cmp.Or(t.renewed, t.memory.Renewed)
	return !renewed.IsZero() && now.Sub(renewed) >= t.staleAfter
}

func (t *Tracker) groupStatus(nodes []*corev1.Node, now time.Time) nodegroups.GroupStatus {
	n := t.nodePool
	g := nodegroups.GroupStatus{
		Name: n.Metadata.Name, Members: nodes, LastScaleUp: t.memory.LastScaleUp, Open: true, MinWait: MaxWait, ByEvent: true,
		New:     &nodegroups.NewNodes{Choices: n.choices(), Taints: nodegroups.LastingTaints(n.Spec.Template.Spec.Taints)},
		Version: n.version(), Limits: fmt.Sprint(n.Metadata.Generation),
	}
	coming := t.launches.coming(n.nodes() - int64(len(t.own)))
	g.MaxNodes = n.maxNodes()
	late := t.memory.Progress.Add(t.graces.Provision)
	limit, stale := n.exhausted(t.own), t.launches.behindUntil(now)
	switch {
	case n.Metadata.DeletionTimestamp != nil || n.Status.Resources == nil:
		return n.is(g, nodegroups.Unknown, n.unused(), "")
	case coming > 0 && now.Before(late):
		g.Until, g.Arriving = late, int(coming)
		return n.is(g, nodegroups.Growing, nodegroups.ReasonProvisioning, "%d to come", coming)
	case n.Spec.Replicas != nil && coming > 0:
		return n.is(g, nodegroups.Full, reasonNodesMissing, "%d of %d missing", coming, n.nodes())
	case n.Spec.Replicas != nil:
		return n.is(g, nodegroups.Full, reasonReplicas, "%d", *n.Spec.Replicas)
	case limit != "" && !stale.IsZero():
		g.Until = stale // BackingOff is not set: if nodes are removed all the time, pods must not be held for ever
		return n.is(g, nodegroups.CanGrow, reasonBehind, "%s", limit)
	case limit != "" && coming > 0:
		return n.is(g, nodegroups.Full, reasonNodesMissing, "%d missing; %s", coming, limit)
	case limit != "":
		return n.is(g, nodegroups.Full, reasonAtLimits, "%s", limit)
	case n.unused().Code != "":
		return n.is(g, nodegroups.Unknown, n.unused(), "%s", n.notReady())
	}
	if g.Until = stale; stale.IsZero() {
		g.Remaining = n.remaining()
	}
	return t.belowLimits(g, now)
}

// belowLimits returns the status of a NodePool whose limits allow another node. The status depends on whether launches
// fail.
func (t *Tracker) belowLimits(g nodegroups.GroupStatus, now time.Time) nodegroups.GroupStatus {
	n := t.nodePool
	failing, forgotten, message := t.launches.failing(now)
	due := failing.Add(t.graces.Backoff)
	switch {
	case !failing.IsZero() && !now.Before(due):
		g.Remaining, g.Until = nil, forgotten
		return n.is(g, nodegroups.Full, reasonLaunchFails, "%s", message)
	case !failing.IsZero():
		g.BackingOff, g.Until = true, nodegroups.Earliest(g.Until, nodegroups.Earliest(forgotten, due))
		return n.is(g, nodegroups.CanGrow, reasonFailing, "%s", message)
	case len(n.Spec.Limits) == 0:
		return n.is(g, nodegroups.CanGrow, reasonNoLimits, "")
	}
	return n.is(g, nodegroups.CanGrow, reasonBelowLimits, "%s", n.describe(slices.Sorted(maps.Keys(n.Spec.Limits))[0]))
}

// is returns the group with the state and the reason. The reason's detail names the NodePool.
func (n *nodePool) is(g nodegroups.GroupStatus, state nodegroups.State, reason nodegroups.Reason, format string, args ...any) nodegroups.GroupStatus {
	g.State, g.Reason = state, reason.With("NodePool %s", n.Metadata.Name)
	if format != "" {
		g.Reason.Detail += ": " + fmt.Sprintf(format, args...)
	}
	return g
}

// version returns a string that changes with the limits and with the number of ordered nodes and resources.
func (n *nodePool) version() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.Spec.Limits)) {
		parts = append(parts, n.describe(name))
	}
	return fmt.Sprintf("%d; %s", n.nodes(), strings.Join(parts, "; "))
}
