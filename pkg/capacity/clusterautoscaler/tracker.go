package clusterautoscaler

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/capacity"
)

// backoffMemory is how long a back-off is remembered after it was last seen: the autoscaler drops it from its status
// while no pod is pending. It is the autoscaler's shortest back-off, --initial-node-group-backoff-duration.
const backoffMemory = 5 * time.Minute

// Reasons of this source.
var (
	reasonMissing      = capacity.Reason{Code: "StatusMissing", Sentence: "the cluster autoscaler's status ConfigMap does not exist"}
	reasonUnreadable   = capacity.Reason{Code: "StatusUnreadable", Sentence: "the cluster autoscaler's status cannot be read"}
	reasonInitializing = capacity.Reason{Code: "StatusInitializing", Sentence: "the cluster autoscaler is starting"}
	reasonStale        = capacity.Reason{Code: "StatusStale", Sentence: "the cluster autoscaler has stopped writing its status"}
	reasonNoGroup      = capacity.Reason{Code: "NoNodeGroup", Sentence: "no node group in the cluster autoscaler's status belongs to the pool"}
	reasonUnhealthyAll = capacity.Reason{Code: "ClusterUnhealthy", Sentence: "the cluster autoscaler finds the cluster unhealthy and does not scale"}
	reasonSkipped      = capacity.Reason{Code: "Skipped", Sentence: "a node group of the pool is unhealthy and may be used again"}
	reasonUnhealthy    = capacity.Reason{Code: "Unhealthy", Sentence: "the pool's node groups are unhealthy and are not grown"}
	reasonBelowMax     = capacity.Reason{Code: "BelowMaxSize", Sentence: "a node group of the pool is below its maximum size"}
	reasonBackingOff   = capacity.Reason{Code: "BackingOff", Sentence: "a node group of the pool failed to grow and may be tried again"}
	reasonAtMax        = capacity.Reason{Code: "AtMaxSize", Sentence: "the pool's node groups are at their maximum size"}
	reasonShrinking    = capacity.Reason{Code: "Shrinking", Sentence: "nodes of the pool are being taken away, which makes room for others"}
	reasonBehind       = capacity.Reason{Code: "StatusBehind", Sentence: "nodes of the pool are gone, which the autoscaler's status does not say yet"}
	reasonBackoff      = capacity.Reason{Code: "Backoff", Sentence: "the pool's node groups fail to grow"}
	reasonNodesMissing = capacity.Reason{Code: "NodesMissing", Sentence: "the pool's node groups are at their maximum size and nodes never came"}
)

// Graces are the durations that Tracker waits for.
type Graces struct {
	StaleAfter, Provision, Backoff time.Duration
}

// Tracker follows the cluster autoscaler's status and remembers what one status alone does not say. It has no lock.
type Tracker struct {
	graces Graces

	problem     capacity.Reason // why there is no status, if there is none
	err         error           // what is wrong with the status, if it cannot be read
	orphans     map[string]bool // groups that no pool claims and that have no nodes to tell whose they are
	groups      []nodeGroup
	stamp       string    // the annotation that changes with every write
	changed     time.Time // when stamp last changed, by our clock
	freshSince  time.Time
	incarnation string
	uid         types.UID // of the ConfigMap; a polite stop deletes it
	restored    Memory    // until the first status is seen
	memory      map[string]*Group
	members     *members
}

// Memory is what is remembered of the autoscaler's status. It outlives the process in the published state.
type Memory struct {
	// FreshSince is since when the status has been readable without a break; zero while it is not.
	FreshSince time.Time `json:"freshSince,omitzero"`
	// Incarnation changes when the autoscaler starts anew; UID, the ConfigMap's, when that was made anew.
	Incarnation string    `json:"incarnation,omitempty"`
	UID         types.UID `json:"uid,omitempty"`
	// Stamp identifies the status and Changed is when it came, for a status that has not changed for long.
	Stamp   string    `json:"stamp,omitempty"`
	Changed time.Time `json:"changed,omitzero"`
	// Groups are the node groups, by name.
	Groups map[string]Group `json:"groups,omitempty"`
}

// Group is what is remembered of a node group.
type Group struct {
	// Target is the number of nodes that were ordered, Present those of them that came.
	Target  int `json:"target"`
	Present int `json:"present"`
	// Rose is when the target was last seen to rise; Progress when it rose, a node came or nothing was on its way.
	Rose     time.Time `json:"rose,omitzero"`
	Progress time.Time `json:"progress,omitzero"`
	// BackoffSince and BackoffSeen are the first and the last sight of a back-off; zero without one.
	BackoffSince time.Time   `json:"backoffSince,omitzero"`
	BackoffSeen  time.Time   `json:"backoffSeen,omitzero"`
	BackoffInfo  BackoffInfo `json:"backoffInfo,omitzero"`
	// UnhealthySince is since when the group has been unhealthy without a break; zero while it is not.
	UnhealthySince time.Time `json:"unhealthySince,omitzero"`
}

// NewTracker returns a tracker that has not seen a status yet.
func NewTracker(graces Graces) *Tracker {
	return &Tracker{graces: graces, problem: reasonMissing, memory: map[string]*Group{}, members: newMembers()}
}

// quiet is for how long a status must have stayed as it is to be remembered as such: the autoscaler writes every 10 s.
const quiet = time.Minute

// Memory returns what is remembered at the time now. It is the same from one write of the status to the next as long as
// nothing but the time went on, to within a minute.
func (t *Tracker) Memory(now time.Time) Memory {
	m := Memory{FreshSince: t.freshSince, Incarnation: t.incarnation, UID: t.uid, Groups: make(map[string]Group, len(t.memory))}
	if t.stamp != "" && now.Sub(t.changed) >= quiet {
		m.Stamp, m.Changed = hash(t.stamp), t.changed
	}
	upcoming := map[string]bool{}
	for i := range t.groups {
		upcoming[t.groups[i].Name] = t.groups[i].Health.upcoming() > 0
	}
	for name, group := range t.memory {
		g := *group
		if !upcoming[name] {
			g.Progress = time.Time{}
		}
		g.BackoffSeen = g.BackoffSeen.Truncate(time.Minute)
		m.Groups[name] = g
	}
	return m
}

// Restore takes over what another tracker remembered, at the time now.
func (t *Tracker) Restore(m Memory, now time.Time) {
	t.freshSince, t.restored, t.uid = m.FreshSince, m, m.UID
	for name, group := range m.Groups {
		if group.Progress.IsZero() {
			group.Progress = now
		}
		t.memory[name] = &group
	}
}

func hash(s string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return strconv.FormatUint(h.Sum64(), 16)
}

// Fail takes in that the ConfigMap cannot be read.
func (t *Tracker) Fail(err error) {
	reason := reasonUnreadable
	reason.Detail = err.Error()
	t.lose(reason)
	t.stamp, t.err = "", err
}

// Observe takes in the ConfigMap as it is at the time now: nil if it does not exist. It returns an error that says what
// is wrong with the status if it cannot be read; the pools are Unknown then.
func (t *Tracker) Observe(cm *corev1.ConfigMap, now time.Time) error {
	if cm == nil {
		t.lose(reasonMissing)
		t.stamp, t.err = "", nil
		return nil
	}
	// What stays as it was says nothing new: a back-off in a frozen status was not seen again.
	stamp := cm.Annotations[LastUpdatedAnnotation] + "\n" + cm.Data[StatusKey]
	if stamp == t.stamp {
		return t.err
	}
	if t.stamp != "" && t.stale(now) {
		t.freshSince = time.Time{}
	}
	t.stamp, t.changed = stamp, now
	if t.uid != "" && t.uid != cm.UID {
		t.forget()
	}
	t.uid = cm.UID
	if t.restored.Stamp == hash(stamp) {
		t.changed = t.restored.Changed
	}
	t.err = t.read(cm, now)
	t.restored = Memory{}
	return t.err
}

func (t *Tracker) read(cm *corev1.ConfigMap, now time.Time) error {
	status, err := parse(cm.Data[StatusKey])
	switch {
	case err != nil:
		reason := reasonUnreadable
		reason.Detail = err.Error()
		t.lose(reason)
		return fmt.Errorf("reading key %q of ConfigMap %s/%s: %w", StatusKey, cm.Namespace, cm.Name, err)
	case status.AutoscalerStatus == autoscalerInitializing:
		t.lose(reasonInitializing)
		t.forget()
		return nil
	case status.ClusterWide.Health.Status == healthUnhealthy:
		t.lose(reasonUnhealthyAll)
		return nil
	}
	t.incarnation = status.ClusterWide.Health.LastTransitionTime
	if t.freshSince.IsZero() || !t.restored.FreshSince.IsZero() && t.restored.Incarnation != t.incarnation {
		t.freshSince = now // nobody saw if the status was fresh in between
	}
	t.problem = capacity.Reason{}
	t.groups = status.NodeGroups
	t.members.written(t.groups)
	for i := range t.groups {
		t.remember(&t.groups[i], now)
	}
	return nil
}

// forget forgets what made groups count as full, for another autoscaler has taken over and knows nothing of it: it will try again.
func (t *Tracker) forget() {
	for _, m := range t.memory {
		m.BackoffSince, m.BackoffSeen, m.BackoffInfo, m.UnhealthySince = time.Time{}, time.Time{}, BackoffInfo{}, time.Time{}
	}
}

func (t *Tracker) lose(reason capacity.Reason) {
	t.problem, t.groups, t.freshSince = reason, nil, time.Time{}
}

func (t *Tracker) remember(g *nodeGroup, now time.Time) {
	present := g.Health.CloudProviderTarget - g.Health.upcoming()
	m, known := t.memory[g.Name]
	if !known {
		m = &Group{Target: g.Health.CloudProviderTarget, Present: present, Progress: now}
		t.memory[g.Name] = m
	}
	if g.Health.CloudProviderTarget > m.Target {
		m.Rose, m.Progress = now, now
		m.BackoffSince, m.BackoffSeen = time.Time{}, time.Time{}
	}
	// A group with nothing on its way has nothing to be late: the clock starts with the next order.
	if present > m.Present || g.Health.upcoming() <= 0 {
		m.Progress = now
	}
	m.Target, m.Present = g.Health.CloudProviderTarget, present
	if g.ScaleUp.Status == scaleUpBackoff {
		if m.BackoffSince.IsZero() || now.Sub(m.BackoffSeen) > backoffMemory {
			m.BackoffSince = now
		}
		m.BackoffSeen, m.BackoffInfo = now, g.ScaleUp.BackoffInfo
	}
	if g.Health.Status != healthUnhealthy {
		m.UnhealthySince = time.Time{}
	} else if m.UnhealthySince.IsZero() {
		m.UnhealthySince = now
	}
}

// stale reports whether the status has not changed for so long, at the time now, that the autoscaler counts as silent.
func (t *Tracker) stale(now time.Time) bool {
	return now.Sub(t.changed) >= t.graces.StaleAfter
}

// Names returns the names of the node groups in the status, sorted.
func (t *Tracker) Names() []string {
	names := make([]string, len(t.groups))
	for i := range t.groups {
		names[i] = t.groups[i].Name
	}
	sort.Strings(names)
	return names
}

// Assign tells the tracker which groups the pools claim, and which nodes exist, whenever that has changed. A group that no pool claims and that has
// no node may belong to any pool that tells its groups by its nodes: it counts for all of them, so that a pool that is
// scaled to nothing is not taken for one that cannot grow.
func (t *Tracker) Assign(claims []Groups, nodes []*corev1.Node) {
	t.members.look(nodes, t.groups)
	t.orphans = map[string]bool{}
	present := presentIn(nodes)
	for i := range t.groups {
		name := t.groups[i].Name
		claimed := slices.ContainsFunc(claims, func(g Groups) bool { return g.Claim(name) })
		if !claimed && !present.have(name) {
			t.orphans[name] = true
		}
	}
}

// Source judges one pool by the tracker's status.
type Source struct {
	Tracker *Tracker
	Groups  Groups
}

var _ capacity.Source = Source{}

// Judge implements capacity.Source.
func (s Source) Judge(nodes []*corev1.Node, now time.Time) capacity.Judgement {
	t := s.Tracker
	if t.problem.Code != "" {
		return capacity.Judgement{State: capacity.Unknown, Reason: t.problem}
	}
	if t.stale(now) {
		reason := reasonStale
		reason.Detail = fmt.Sprintf("last change seen at %s", t.changed.UTC().Format(time.RFC3339))
		return capacity.Judgement{State: capacity.Unknown, Reason: reason}
	}
	judgement := capacity.Judgement{Until: t.changed.Add(t.graces.StaleAfter), FreshSince: t.freshSince}
	groups, present := s.Groups.With(nodes), presentIn(nodes)
	found := map[capacity.State][]capacity.Reason{}
	for i := range t.groups {
		g := &t.groups[i]
		if !groups.Claim(g.Name) && !(groups.byNodes && t.orphans[g.Name]) {
			continue
		}
		judgement.Unseen = judgement.Unseen || !present.unlabelled && !present.have(g.Name) // a node without a label may be of any group
		state, reason, until := t.judge(g, now)
		found[state] = append(found[state], reason)
		judgement.Until = capacity.Earliest(judgement.Until, until)
		if rose := t.memory[g.Name].Rose; rose.After(judgement.LastRise) {
			judgement.LastRise = rose
		}
	}
	for _, state := range []capacity.State{capacity.Growing, capacity.CanGrow, capacity.Unknown, capacity.Full} {
		if reasons := found[state]; len(reasons) > 0 {
			judgement.State, judgement.Reason = state, merge(reasons)
			return judgement
		}
	}
	judgement.State, judgement.Reason = capacity.Unknown, reasonNoGroup
	judgement.Reason.Detail = fmt.Sprintf("the status has %s", strings.Join(t.Names(), ", "))
	if len(t.groups) == 0 {
		judgement.Reason.Detail = "the status has no node groups"
	}
	return judgement
}

// judge returns the state of one node group and, if time alone changes it, when.
func (t *Tracker) judge(g *nodeGroup, now time.Time) (capacity.State, capacity.Reason, time.Time) {
	m := t.memory[g.Name]
	detail := func(r capacity.Reason, format string, args ...any) capacity.Reason {
		r.Detail = g.Name + ": " + fmt.Sprintf(format, args...)
		return r
	}
	size := fmt.Sprintf("%d of %d", g.Health.CloudProviderTarget, g.Health.MaxSize)
	atMax := g.Health.CloudProviderTarget >= g.Health.MaxSize
	upcoming := g.Health.upcoming()
	late := m.Progress.Add(t.graces.Provision)
	backoffEnds := time.Time{}
	if g.ScaleUp.Status != scaleUpBackoff && !m.BackoffSeen.IsZero() {
		backoffEnds = m.BackoffSeen.Add(backoffMemory)
	}
	inBackoff := !m.BackoffSeen.IsZero() && (backoffEnds.IsZero() || now.Before(backoffEnds))
	backoffFull := m.BackoffSince.Add(t.graces.Backoff)
	// The autoscaler skips an unhealthy group like one in back-off.
	unhealthy, unhealthyFull := !m.UnhealthySince.IsZero(), m.UnhealthySince.Add(t.graces.Backoff)

	switch {
	case upcoming > 0 && now.Before(late):
		return capacity.Growing, detail(capacity.ReasonProvisioning, "%d to come, %s", upcoming, size), late
	case upcoming > 0 && atMax:
		return capacity.Full, detail(reasonNodesMissing, "%d missing, %s", upcoming, size), time.Time{}
	case atMax && t.members.leaving[g.Name] > 0:
		return capacity.CanGrow, detail(reasonShrinking, "%d nodes, %s", t.members.leaving[g.Name], size), time.Time{}
	case atMax && len(t.members.lost[g.Name]) > 0:
		return capacity.CanGrow, detail(reasonBehind, "%d nodes, %s", len(t.members.lost[g.Name]), size), time.Time{}
	case atMax:
		return capacity.Full, detail(reasonAtMax, "%s", size), time.Time{}
	case inBackoff && !now.Before(backoffFull):
		return capacity.Full, detail(reasonBackoff, "%s: %s", m.BackoffInfo.ErrorCode, m.BackoffInfo.ErrorMessage), backoffEnds
	case unhealthy && !now.Before(unhealthyFull):
		return capacity.Full, detail(reasonUnhealthy, "%s", size), time.Time{}
	case inBackoff && unhealthy:
		return capacity.CanGrow, detail(reasonBackingOff, "%s, %s, unhealthy", m.BackoffInfo.ErrorCode, size), capacity.Earliest(backoffFull, unhealthyFull)
	case inBackoff:
		return capacity.CanGrow, detail(reasonBackingOff, "%s, %s", m.BackoffInfo.ErrorCode, size), backoffFull
	case unhealthy:
		return capacity.CanGrow, detail(reasonSkipped, "%s", size), unhealthyFull
	default:
		return capacity.CanGrow, detail(reasonBelowMax, "%s", size), time.Time{}
	}
}

// merge returns the first reason with the details of all.
func merge(reasons []capacity.Reason) capacity.Reason {
	merged := reasons[0]
	details := make([]string, len(reasons))
	for i := range reasons {
		details[i] = reasons[i].Detail
	}
	merged.Detail = strings.Join(details, "; ")
	return merged
}
