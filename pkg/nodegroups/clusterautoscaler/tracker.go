package clusterautoscaler

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// backoffMemory bounds the time for which a backoff counts after it was last seen. While no pod is pending, the
// autoscaler drops the backoff from its status. The value is the autoscaler's shortest backoff,
// --initial-node-group-backoff-duration.
const backoffMemory = 5 * time.Minute

// Reasons of this source.
var (
	reasonMissing             = nodegroups.Reason{Code: "StatusMissing", Sentence: "the cluster autoscaler's status ConfigMap does not exist"}
	reasonUnreadable          = nodegroups.Reason{Code: "StatusUnreadable", Sentence: "the cluster autoscaler's status cannot be read"}
	reasonInitializing        = nodegroups.Reason{Code: "StatusInitializing", Sentence: "the cluster autoscaler is starting"}
	reasonStale               = nodegroups.Reason{Code: "StatusStale", Sentence: "the cluster autoscaler has stopped writing its status"}
	reasonNoGroup             = nodegroups.Reason{Code: "NoNodeGroup", Sentence: "no node group in the cluster autoscaler's status belongs to the pool"}
	reasonNotScaled           = nodegroups.Reason{Code: "NotAutoscaled", Sentence: "nodes of the pool are in no node group that the cluster autoscaler scales"}
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
	staleAfter  time.Duration
	provision   time.Duration     // the grace for all pools
	problem     nodegroups.Reason // why there is no status, if there is none
	err         error             // what is wrong with the status, if it cannot be read
	orphans     map[string]bool   // groups that no pool owns
	groups      []nodeGroup
	stamp       string    // the annotation that changes with every write, and the status
	changed     time.Time // when stamp last changed, by our clock
	scans       scans
	generation  int // changes when another autoscaler takes over
	incarnation string
	unhealthy   bool      // whether the last status calls the cluster unhealthy
	uid         types.UID // of the ConfigMap, which an autoscaler deletes when it stops gracefully
	restored    Memory    // until the first status is seen
	memory      map[string]*Group
	seen        map[string]time.Time // by group: when the templates of its nodes were last read
	members     *members
}

// Memory is the tracker's state, as published. It outlives the process.
type Memory struct {
	// Loops are the autoscaler's last loops that still matter, and Outages are the periods without loops.
	Loops   []Loop              `json:"loops,omitempty"`
	Outages []nodegroups.Outage `json:"pauses,omitempty"`
	// Incarnation changes when the autoscaler restarts and when the cluster's health changes. Unhealthy is set while
	// the cluster is unhealthy. UID is the UID of the ConfigMap.
	Incarnation string    `json:"incarnation,omitempty"`
	Unhealthy   bool      `json:"unhealthy,omitempty"`
	UID         types.UID `json:"uid,omitempty"`
	// Stamp identifies the status, and Changed is when the status came. Both are set if the status has not changed for
	// the time quiet, or if Loops are published.
	Stamp   string    `json:"stamp,omitempty"`
	Changed time.Time `json:"changed,omitzero"`
	// Groups are the node groups, by name.
	Groups map[string]Group `json:"groups,omitempty"`
}

// Group is the remembered state of a node group.
type Group struct {
	// Target is the number of ordered nodes, and Present is the number of them that have come.
	Target  int `json:"target"`
	Present int `json:"present"`
	// LastScaleUp is when a scale-up was last seen. Progress is the last time when the target rose, a node came, or no
	// node was missing. It is not published while no node is missing.
	LastScaleUp time.Time `json:"rose,omitzero"`
	Progress    time.Time `json:"progress,omitzero"`
	// BackoffSince and BackoffSeen are when a backoff was first and last seen; zero without a backoff.
	BackoffSince time.Time   `json:"backoffSince,omitzero"`
	BackoffSeen  time.Time   `json:"backoffSeen,omitzero"`
	BackoffInfo  BackoffInfo `json:"backoffInfo,omitzero"`
	// UnhealthySince is when the group became unhealthy; zero while it is healthy.
	UnhealthySince time.Time `json:"unhealthySince,omitzero"`
	// Nodes is the number of the group's nodes, and Newest is when the newest node was created. Removed counts deleted
	// nodes that the target may still include. The first number is for those deleted since the last status, the second
	// for those deleted between that status and the one before it, and so on.
	Nodes   int       `json:"nodes,omitempty"`
	Newest  time.Time `json:"newest,omitzero"`
	Removed []int     `json:"lost,omitempty"`
	// Pool is the pool of the group's last nodes, and Seen are their templates. Without a Pool, the nodes were in no
	// pool whose source is the autoscaler's status.
	Pool string                    `json:"pool,omitempty"`
	Seen []nodegroups.NodeTemplate `json:"seen,omitempty"`
}

// NewTracker returns a tracker that has not seen a status yet. A status that has not changed for staleAfter counts as
// stale. provision is the provisionGrace of all pools: once a group's templates are known, nodes younger than provision
// do not change them.
func NewTracker(staleAfter, provision time.Duration) *Tracker {
	return &Tracker{staleAfter: staleAfter, provision: provision, problem: reasonMissing, memory: map[string]*Group{}, seen: map[string]time.Time{}, members: newMembers()}
}

// quiet is the minimum time for which a status must stay unchanged before its stamp is published. The autoscaler writes
// every 10 s.
const quiet = time.Minute

// Memory returns the state to publish at the time now. If loops is set, the state includes the autoscaler's last loops.
// Callers set it only while pods are held. Without loops, the state changes at most once a minute if the autoscaler
// writes its status and nothing else changes.
func (t *Tracker) Memory(loops bool, now time.Time) Memory {
	m := Memory{Outages: t.scans.Outages, Incarnation: t.incarnation, Unhealthy: t.unhealthy, UID: t.uid, Groups: make(map[string]Group, len(t.memory))}
	if loops {
		m.Loops = slices.Clone(t.scans.loops)
	}
	if t.stamp != "" && (loops || now.Sub(t.changed) >= quiet) {
		m.Stamp, m.Changed = hash(t.stamp), t.changed
	}
	inhabitants := t.members.inhabitants()
	for name, group := range t.memory {
		g := *group
		g.Nodes, g.Newest, g.Removed = inhabitants[name].nodes, inhabitants[name].newest, t.members.removedSince(name)
		if g.Present >= g.Target && t.problem.Code == "" {
			g.Progress = time.Time{} // it advances with every status
		}
		g.BackoffSeen = g.BackoffSeen.Truncate(time.Minute)
		m.Groups[name] = g
	}
	return m
}

// Restore sets the state that another tracker published, at the time now.
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
	t.members.restore(m.Groups)
}

func hash(s string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return strconv.FormatUint(h.Sum64(), 16)
}

// Fail records that the ConfigMap cannot be read at the time now.
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
	if cm == nil {
		t.checkStale(now)
		t.loseStatus(reasonMissing, now)
		t.stamp, t.err = "", nil
		return nil
	}
	// An unchanged status is no news: a backoff in it was not seen again.
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

// read reads the status. known is set if the tracker whose state was restored has read this status before. A known
// status ends no loop, and a backoff in it was not seen again.
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
	if known && !slices.ContainsFunc(t.groups, func(g nodeGroup) bool { return t.memory[g.Name] == nil }) {
		t.scans.endOutage(now)
		return nil
	}
	t.members.written(t.groups)
	quiet, listed := true, make(map[string]bool, len(t.groups))
	for i := range t.groups {
		listed[t.groups[i].Name] = true
		if t.remember(&t.groups[i], now) {
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

// identify resets the tracker if another autoscaler has written the status. That is so if the time of the cluster's
// last transition has changed without a change of health. (An autoscaler that restarts while the health changes first
// writes Initializing.)
func (t *Tracker) identify(status *status, now time.Time) {
	incarnation, unhealthy := status.ClusterWide.Health.LastTransitionTime, status.ClusterWide.Health.Status == healthUnhealthy
	if t.incarnation != "" && t.incarnation != incarnation && t.unhealthy == unhealthy {
		t.forget(now)
	}
	t.incarnation, t.unhealthy = incarnation, unhealthy
}

// checkStale records an outage if the last status is staleAfter old at the time now. A new status does not show that
// the autoscaler ran loops in between.
func (t *Tracker) checkStale(now time.Time) {
	last := t.changed
	if t.stamp == "" {
		last = t.restored.Changed
	}
	if !last.IsZero() && now.Sub(last) >= t.staleAfter {
		t.scans.beginOutage(last)
	}
}

// forget drops backoffs and counted loops: a restarted autoscaler remembers neither, and tries again. The grace for
// nodes that were ordered before starts again.
func (t *Tracker) forget(now time.Time) {
	t.generation++
	t.scans.reset()
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
		m = &Group{Target: g.Health.CloudProviderTarget, Present: present, Progress: now}
		t.memory[g.Name] = m
	}
	if g.Health.CloudProviderTarget > m.Target {
		happened = true
		m.LastScaleUp, m.Progress = now, now
		m.BackoffSince, m.BackoffSeen = time.Time{}, time.Time{}
	}
	// In a group without upcoming nodes, none can be late: the grace starts with the next order.
	if present > m.Present || g.Health.upcoming() <= 0 {
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

// stale reports whether the status has not changed for staleAfter at the time now.
func (t *Tracker) stale(now time.Time) bool {
	return now.Sub(t.changed) >= t.staleAfter
}
