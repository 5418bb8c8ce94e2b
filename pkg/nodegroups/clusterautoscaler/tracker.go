package clusterautoscaler

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// backoffMemory is how long a backoff counts after it was last seen in the status. While no pod is pending, the
// autoscaler leaves out the backoff from its status. The value is the default of the autoscaler's shortest backoff,
// --initial-node-group-backoff-duration.
const backoffMemory = 5 * time.Minute

// Reasons of this source.
var (
	reasonMissing             = nodegroups.Reason{Code: "StatusMissing", Sentence: "the cluster autoscaler's status ConfigMap does not exist"}
	reasonUnreadable          = nodegroups.Reason{Code: "StatusUnreadable", Sentence: "the cluster autoscaler's status cannot be read"}
	reasonImpossible          = nodegroups.Reason{Code: "ImpossibleCount", Sentence: "the cluster autoscaler's status has an impossible number for a node group of the pool"}
	reasonInitializing        = nodegroups.Reason{Code: "StatusInitializing", Sentence: "the cluster autoscaler is starting"}
	reasonStale               = nodegroups.Reason{Code: "StatusStale", Sentence: "the cluster autoscaler has stopped writing its status"}
	reasonNoGroup             = nodegroups.Reason{Code: "NoNodeGroup", Sentence: "no node group in the cluster autoscaler's status belongs to the pool"}
	reasonNotScaled           = nodegroups.Reason{Code: "NotAutoscaled", Sentence: "nodes of the pool are in no node group that the cluster autoscaler scales"}
	reasonNodePool            = nodegroups.Reason{Code: "KarpenterNodes", Sentence: "nodes of the pool are Karpenter's, which the cluster autoscaler does not scale"}
	reasonUnhealthyAll        = nodegroups.Reason{Code: "ClusterUnhealthy", Sentence: "the cluster autoscaler finds the cluster unhealthy and does not scale"}
	reasonUnhealthyBackingOff = nodegroups.Reason{Code: "UnhealthyRecently", Sentence: "a node group of the pool is unhealthy and may recover"}
	reasonUnhealthy           = nodegroups.Reason{Code: "Unhealthy", Sentence: "the pool's node groups are unhealthy and are not scaled up"}
	reasonBelowMax            = nodegroups.Reason{Code: "BelowMaxSize", Sentence: "a node group of the pool is below its maximum size"}
	reasonBackingOff          = nodegroups.Reason{Code: "BackingOff", Sentence: "a scale-up of the pool failed and may be tried again"}
	reasonAtMax               = nodegroups.Reason{Code: "AtMaxSize", Sentence: "the pool's node groups are at their maximum size"}
	reasonShrinking           = nodegroups.Reason{Code: "Shrinking", Sentence: "nodes of the pool are being removed"}
	reasonBehind              = nodegroups.Reason{Code: "StatusBehind", Sentence: "nodes of the pool were removed, and the autoscaler's status still counts them"}
	reasonBackoff             = nodegroups.Reason{Code: "Backoff", Sentence: "scale-ups of the pool's node groups fail"}
	reasonNodesMissing        = nodegroups.Reason{Code: "NodesMissing", Sentence: "the pool's node groups are at their maximum size and nodes never came"}
)

// Tracker follows the cluster autoscaler's status and remembers facts that one status alone does not show. It is not
// safe for concurrent use.
type Tracker struct {
	// Draining reports whether pods are terminating on a node. nil means that no pods are.
	Draining func(node string) bool
	// Degraded is when the autoscaler began to skip pods in its loops; zero if it does not.
	Degraded time.Time

	staleAfter  time.Duration
	provision   time.Duration     // the provisionGrace of all pools
	problem     nodegroups.Reason // why there is no usable status; empty if there is one
	err         error             // why the last status cannot be read; nil if it can
	orphans     map[string]bool   // groups that are assigned to no pool, as ObserveNodes determines them
	groups      []nodeGroup
	stamp       string    // identifies the last status: LastUpdatedAnnotation and the text of the status
	changed     time.Time // when stamp last changed, by our clock
	scans       scans
	generation  int       // changes when another autoscaler takes over
	tookOver    time.Time // when generation last changed
	incarnation string
	unhealthy   bool      // whether the last status calls the cluster unhealthy
	uid         types.UID // the ConfigMap's UID; an autoscaler that stops gracefully deletes the ConfigMap
	restored    Memory    // what Restore has set; empty once a status was read
	memory      map[string]*Group
	seen        map[string]time.Time // by group: when the templates of its nodes were last read
	nodePools   map[string]NodePool  // by pool/name, Karpenter's NodePools that had nodes in the pool and are no pool's source
	members     *members
}

// Memory is the part of the tracker's state that the leader publishes, so that the next leader can restore it.
type Memory struct {
	// Loops are the autoscaler's latest loops, from which ScannedBefore is computed. Outages are the periods without
	// loops.
	Loops   []Loop              `json:"loops,omitempty"`
	Outages []nodegroups.Outage `json:"pauses,omitempty"`
	// Incarnation changes when the autoscaler restarts and when the cluster's health changes. Unhealthy is set while
	// the cluster is unhealthy. UID is the UID of the ConfigMap.
	Incarnation string    `json:"incarnation,omitempty"`
	Unhealthy   bool      `json:"unhealthy,omitempty"`
	UID         types.UID `json:"uid,omitempty"`
	// Stamp identifies the status, and Changed is when the status last changed. Both are set if the status has been
	// unchanged for at least the duration quiet, or if Loops are published.
	Stamp   string    `json:"stamp,omitempty"`
	Changed time.Time `json:"changed,omitzero"`
	// Groups are the node groups, by name.
	Groups map[string]Group `json:"groups,omitempty"`
	// NodePools are the NodePools of Karpenter that are no pool's source and have, or had, nodes in a pool, by
	// POOL/NAME.
	NodePools map[string]NodePool `json:"nodePools,omitempty"`
}

// NodePool is what is remembered of a NodePool of Karpenter, from its nodes.
type NodePool struct {
	// Pool is the pool of the nodes, Name is the NodePool's name, and Taints are the taints of a new node.
	Pool   string         `json:"pool"`
	Name   string         `json:"name"`
	Taints []corev1.Taint `json:"taints,omitempty"`
	// Left is when its last node was gone; zero while it has nodes.
	Left time.Time `json:"left,omitzero"`
}

// nodePoolMemory is how long a NodePool without nodes is remembered. Nothing tells whether it still exists.
const nodePoolMemory = 24 * time.Hour

// Group is the remembered state of a node group.
type Group struct {
	// Target is the group's target size. Present is the target size without the nodes that the autoscaler still
	// expects.
	Target  int `json:"target"`
	Present int `json:"present"`
	// Ordered is how many nodes the last scale-ups ordered that have not become ready. Ready is the highest number of ready
	// nodes since the first of these scale-ups, without those that were removed.
	Ready   int `json:"ready,omitempty"`
	Ordered int `json:"ordered,omitempty"`
	// LastScaleUp is when a scale-up was last seen. Progress is the last time at which Target or Present changed, or no
	// node was upcoming. While no node is upcoming, Progress is not published.
	LastScaleUp time.Time `json:"rose,omitzero"`
	Progress    time.Time `json:"progress,omitzero"`
	// BackoffSince and BackoffSeen are when the group's backoff was first and last seen; zero without a backoff.
	BackoffSince time.Time   `json:"backoffSince,omitzero"`
	BackoffSeen  time.Time   `json:"backoffSeen,omitzero"`
	BackoffInfo  BackoffInfo `json:"backoffInfo,omitzero"`
	// UnhealthySince is when the group became unhealthy; zero while it is healthy.
	UnhealthySince time.Time `json:"unhealthySince,omitzero"`
	// Nodes is the number of the group's nodes, and Newest is when the newest node was created. Removed has the numbers
	// of deleted nodes that Target may still include. Removed[0] is the number of nodes deleted since the last status,
	// Removed[1] is the number of nodes deleted between the last two statuses, and so on.
	Nodes   int       `json:"nodes,omitempty"`
	Newest  time.Time `json:"newest,omitzero"`
	Removed []int     `json:"lost,omitempty"`
	// Pool is the pool that the group's last nodes were in, and Seen are the templates of these nodes. If Pool is
	// empty, the nodes were in no pool whose source is the autoscaler's status.
	Pool string                    `json:"pool,omitempty"`
	Seen []nodegroups.NodeTemplate `json:"seen,omitempty"`
}

// NewTracker returns a tracker that has not seen a status yet. A status that has not changed for staleAfter, or for
// staleLoops of the autoscaler's loops if this is longer, counts as stale. provision is the provisionGrace of all pools.
// Once a group's templates are known, nodes younger than provision do not change the templates.
func NewTracker(staleAfter, provision time.Duration) *Tracker {
	return &Tracker{staleAfter: staleAfter, provision: provision, problem: reasonMissing, memory: map[string]*Group{}, seen: map[string]time.Time{}, nodePools: map[string]NodePool{}, members: newMembers()}
}

const (
	// staleLoops is the minimum of staleAfter, in loops.
	staleLoops = 3
	// quiet and quietLoops are the minimum time for which a status must stay unchanged before its stamp is published.
	// The longer of the two counts.
	quiet, quietLoops = time.Minute, 2
)

// staleTime returns how long the status may stay unchanged before it counts as stale.
func (t *Tracker) staleTime() time.Duration { return max(t.staleAfter, staleLoops*t.scans.interval()) }

// Memory returns the state to publish at the time now. If loops is set, the state includes the autoscaler's last loops.
// Callers set loops only while pods are held. If loops is not set and only the status's timestamp changes, the state
// changes at most once a minute.
func (t *Tracker) Memory(loops bool, now time.Time) Memory {
	m := Memory{Outages: t.scans.Outages, Incarnation: t.incarnation, Unhealthy: t.unhealthy, UID: t.uid, Groups: make(map[string]Group, len(t.memory)), NodePools: maps.Clone(t.nodePools)}
	if loops {
		m.Loops = slices.Clone(t.scans.loops)
	}
	if t.stamp != "" && (loops || now.Sub(t.changed) >= max(quiet, quietLoops*t.scans.interval())) {
		m.Stamp, m.Changed = hash(t.stamp), t.changed
	}
	inhabitants := t.members.inhabitants()
	for name, group := range t.memory {
		g := *group
		g.Nodes, g.Newest, g.Removed = inhabitants[name].nodes, inhabitants[name].newest, t.members.removedSince(name)
		if g.Present >= g.Target && t.problem.Code == "" {
			g.Progress = time.Time{} // while no node is upcoming, Progress changes with every status
		}
		g.BackoffSeen = g.BackoffSeen.Truncate(time.Minute)
		m.Groups[name] = g
	}
	return m
}

// Restore sets the tracker's state to a state that another tracker published. now is the current time.
func (t *Tracker) Restore(m Memory, now time.Time) {
	t.restored, t.uid, t.incarnation, t.unhealthy = m, m.UID, m.Incarnation, m.Unhealthy
	t.scans = scans{Scans: nodegroups.Scans{Outages: m.Outages}, loops: slices.Clone(m.Loops)}
	t.scans.count()
	for name, group := range m.Groups {
		if group.Progress.IsZero() {
			group.Progress = cmp.Or(m.Changed, now)
		}
		t.memory[name] = &group
	}
	maps.Copy(t.nodePools, m.NodePools)
	t.members.restore(m.Groups)
}

func hash(s string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // Write never returns an error
	return strconv.FormatUint(h.Sum64(), 16)
}

// Fail records that reading the ConfigMap failed at the time now.
func (t *Tracker) Fail(err error, now time.Time) {
	t.checkStale(now)
	t.loseStatus(reasonUnreadable.With("%v", err), now)
	t.stamp, t.err = "", err
}

// Changed returns when the status was last seen to change, by our clock; zero if no status was seen.
func (t *Tracker) Changed() time.Time { return t.changed }

// Observe reads the ConfigMap at the time now. cm is nil if the ConfigMap does not exist. If the status cannot be read,
// Observe returns the error, and the pools become Unknown.
func (t *Tracker) Observe(cm *corev1.ConfigMap, now time.Time) error {
	t.degrade(now)
	if cm == nil {
		t.checkStale(now)
		t.loseStatus(reasonMissing, now)
		t.stamp, t.err = "", nil
		return nil
	}
	// An unchanged status has no new information. If it contains a backoff, BackoffSeen does not change.
	stamp := cm.Annotations[LastUpdatedAnnotation] + "\n" + cm.Data[StatusKey]
	if stamp == t.stamp {
		return t.err
	}
	known := t.restored.Stamp == hash(stamp)
	if !known {
		t.checkStale(now)
	}
	t.stamp, t.changed = stamp, now
	if t.uid != "" && t.uid != cm.UID {
		t.forget(now)
	}
	t.uid = cm.UID
	if known {
		t.changed = t.restored.Changed
	}
	t.err = t.read(cm, known, now)
	t.restored = Memory{}
	return t.err
}

// read reads the status. known is set if the tracker whose state was restored has already read this status. A known
// status does not record a loop. If all groups of a known status are remembered, it does not change BackoffSeen either.
func (t *Tracker) read(cm *corev1.ConfigMap, known bool, now time.Time) error {
	status, err := parse(cm.Data[StatusKey])
	switch {
	case err != nil:
		t.loseStatus(reasonUnreadable.With("%v", err), now)
		return fmt.Errorf("reading key %q of ConfigMap %s/%s: %w", StatusKey, cm.Namespace, cm.Name, err)
	case status.AutoscalerStatus == autoscalerInitializing:
		t.loseStatus(reasonInitializing, now)
		if !known {
			t.forget(now)
		}
		return nil
	}
	if t.identify(status, now); t.unhealthy {
		t.loseStatus(reasonUnhealthyAll, now)
		return nil
	}
	t.problem = nodegroups.Reason{}
	t.groups = status.NodeGroups
	s := &t.scans.LastStatus
	s.Seen, s.Groups, s.AtMax = t.changed, len(t.groups), 0
	for i := range t.groups {
		if t.groups[i].odd == nil && t.groups[i].Health.atMax() {
			s.AtMax++
		}
	}
	if known && !slices.ContainsFunc(t.groups, func(g nodeGroup) bool { return g.odd == nil && t.memory[g.Name] == nil }) {
		t.scans.endOutage(now)
		return nil
	}
	t.members.written(t.groups)
	quiet, listed := true, make(map[string]bool, len(t.groups))
	for i := range t.groups {
		listed[t.groups[i].Name] = true
		if t.groups[i].odd == nil && t.remember(&t.groups[i], now) { // else, what was known before stays
			quiet = false
		}
	}
	for name := range t.memory {
		if !listed[name] {
			delete(t.memory, name)
			delete(t.seen, name)
		}
	}
	if known {
		t.scans.endOutage(now)
	} else {
		t.scans.loop(quiet, now)
	}
	return nil
}

// ReceiveEvents records that the scheduler receives the autoscaler's events, from the time now at the latest.
func (t *Tracker) ReceiveEvents(now time.Time) {
	if s := &t.scans.LastStatus; s.EventsSince.IsZero() {
		s.EventsSince = now
	}
}

// degrade begins an outage when the autoscaler begins to skip pods. It ends the outage when the autoscaler recovers,
// when another autoscaler takes over, and after maxDegradation.
func (t *Tracker) degrade(now time.Time) {
	before := t.scans.degraded
	t.scans.degraded = t.Degraded.After(t.tookOver) && now.Sub(t.Degraded) < maxDegradation
	switch {
	case t.scans.degraded:
		t.scans.beginOutage(now)
	case before && t.problem.Code == "":
		t.scans.endOutage(now)
	}
}

// identify calls forget if another autoscaler process has written the status. The sign of another process is that the
// lastTransitionTime of the cluster's health has changed, but the health has not. (If the health changes during a
// restart, the new process first writes Initializing.)
func (t *Tracker) identify(status *status, now time.Time) {
	incarnation, unhealthy := status.ClusterWide.Health.LastTransitionTime, status.ClusterWide.Health.Status == healthUnhealthy
	if t.incarnation != "" && t.incarnation != incarnation && t.unhealthy == unhealthy {
		t.forget(now)
	}
	t.incarnation, t.unhealthy = incarnation, unhealthy
}

// checkStale records an outage if, at the time now, the last status is at least staleTime old. Callers call checkStale
// even if they have a newer status, because that status does not show that the autoscaler ran loops in between.
func (t *Tracker) checkStale(now time.Time) {
	last := t.changed
	if t.stamp == "" {
		last = t.restored.Changed
	}
	if !last.IsZero() && now.Sub(last) >= t.staleTime() {
		t.scans.beginOutage(last)
	}
}

// forget drops recorded backoffs and loops. A restarted autoscaler has forgotten its backoffs, and tries to scale up
// again. The provisionGrace starts again for nodes that were ordered earlier.
func (t *Tracker) forget(now time.Time) {
	t.generation++
	t.tookOver = now
	t.scans.loops, t.scans.ScannedBefore = nil, time.Time{}
	for _, m := range t.memory {
		m.BackoffSince, m.BackoffSeen, m.BackoffInfo, m.UnhealthySince = time.Time{}, time.Time{}, BackoffInfo{}, time.Time{}
		m.Progress = now
	}
}

func (t *Tracker) loseStatus(reason nodegroups.Reason, now time.Time) {
	t.problem, t.groups = reason, nil
	t.scans.beginOutage(now)
}

// remember records the status of the group, and reports whether the group was scaled up or began to fail.
func (t *Tracker) remember(g *nodeGroup, now time.Time) (happened bool) {
	present := g.Health.CloudProviderTarget - g.Health.upcoming()
	m, known := t.memory[g.Name]
	if !known {
		m = &Group{Target: g.Health.CloudProviderTarget, Present: present, Ready: g.Health.NodeCounts.Registered.Ready, Progress: now}
		t.memory[g.Name] = m
	}
	ready, rise := g.Health.NodeCounts.Registered.Ready, g.Health.CloudProviderTarget-m.Target
	switch {
	case rise < 0: // ready nodes were removed, or orders were given up
		gone := min(-rise, max(0, m.Ready-ready))
		m.Ready, m.Ordered = m.Ready-gone, max(0, m.Ordered+rise+gone)
	case rise > 0 && (m.Ordered == 0 || now.Sub(m.LastScaleUp) >= t.provision): // what has not come by now is not on its way
		m.Ready, m.Ordered = min(m.Ready, ready), rise
	case rise > 0:
		m.Ordered += rise
	}
	m.Ready, m.Ordered = max(m.Ready, ready), max(0, m.Ordered-max(0, ready-m.Ready))
	if rise > 0 {
		happened = true
		m.LastScaleUp, m.Progress = now, now
		m.BackoffSince, m.BackoffSeen = time.Time{}, time.Time{}
	}
	// Without upcoming nodes, no node can be late. The provisionGrace starts when the autoscaler next orders a node. VMs
	// that have been unregistered for too long are not upcoming. The autoscaler may delete them and order others in the
	// same loop. The target then stays, and the other VMs get the whole provisionGrace. Each change of the group's size
	// starts the provisionGrace again, because the autoscaler also gives nodes up this long after the last change
	// (clusterstate.go, IncorrectNodeGroupSize). Until then, it orders no other nodes for pods that fit on them.
	if g.Health.CloudProviderTarget != m.Target || present != m.Present || g.Health.upcoming() <= 0 {
		m.Progress = now
	}
	m.Target, m.Present = g.Health.CloudProviderTarget, present
	if g.ScaleUp.Status == scaleUpBackoff {
		if m.BackoffSince.IsZero() || now.Sub(m.BackoffSeen) > backoffMemory {
			m.BackoffSince = now
			happened = true
		}
		m.BackoffSeen, m.BackoffInfo = now, g.ScaleUp.BackoffInfo
	}
	if g.Health.Status != healthUnhealthy {
		m.UnhealthySince = time.Time{}
	} else if m.UnhealthySince.IsZero() {
		m.UnhealthySince = now
		happened = true
	}
	return happened
}
