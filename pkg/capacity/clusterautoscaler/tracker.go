package clusterautoscaler

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	reasonUnhealthy    = capacity.Reason{Code: "Unhealthy", Sentence: "a node group of the pool is unhealthy"}
	reasonProvisioning = capacity.Reason{Code: "Provisioning", Sentence: "nodes of the pool are on their way"}
	reasonBelowMax     = capacity.Reason{Code: "BelowMaxSize", Sentence: "a node group of the pool is below its maximum size"}
	reasonBackingOff   = capacity.Reason{Code: "BackingOff", Sentence: "a node group of the pool failed to grow and may be tried again"}
	reasonAtMax        = capacity.Reason{Code: "AtMaxSize", Sentence: "the pool's node groups are at their maximum size"}
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

	problem    capacity.Reason // why there is no status, if there is none
	err        error           // what is wrong with the status, if it cannot be read
	orphans    map[string]bool // groups that no pool claims and that have no nodes to tell whose they are
	groups     []NodeGroup
	stamp      string    // the annotation that changes with every write
	changed    time.Time // when stamp last changed, by our clock
	freshSince time.Time
	memory     map[string]*memory
}

// memory is what is remembered of a node group.
type memory struct {
	target, present           int
	rose, progress            time.Time // when the target rose; when it rose or a node came
	backoffSince, backoffSeen time.Time // first and last sight of a back-off; zero without one
	backoffInfo               BackoffInfo
}

// NewTracker returns a tracker that has not seen a status yet.
func NewTracker(graces Graces) *Tracker {
	return &Tracker{graces: graces, problem: reasonMissing, memory: map[string]*memory{}}
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
	if t.stale(now) {
		t.freshSince = time.Time{}
	}
	t.stamp, t.changed = stamp, now
	t.err = t.read(cm, now)
	return t.err
}

func (t *Tracker) read(cm *corev1.ConfigMap, now time.Time) error {
	status, err := Parse(cm.Data[StatusKey])
	switch {
	case err != nil:
		reason := reasonUnreadable
		reason.Detail = err.Error()
		t.lose(reason)
		return fmt.Errorf("reading key %q of ConfigMap %s/%s: %w", StatusKey, cm.Namespace, cm.Name, err)
	case status.AutoscalerStatus == autoscalerInitializing:
		t.lose(reasonInitializing)
		return nil
	}
	if t.freshSince.IsZero() {
		t.freshSince = now
	}
	t.problem = capacity.Reason{}
	t.groups = status.NodeGroups
	for i := range t.groups {
		t.remember(&t.groups[i], now)
	}
	return nil
}

func (t *Tracker) lose(reason capacity.Reason) {
	t.problem, t.groups, t.freshSince = reason, nil, time.Time{}
}

func (t *Tracker) remember(g *NodeGroup, now time.Time) {
	present := g.Health.CloudProviderTarget - g.Health.upcoming()
	m, known := t.memory[g.Name]
	if !known {
		m = &memory{target: g.Health.CloudProviderTarget, present: present, progress: now}
		t.memory[g.Name] = m
	}
	if g.Health.CloudProviderTarget > m.target {
		m.rose, m.progress = now, now
		m.backoffSince, m.backoffSeen = time.Time{}, time.Time{}
	}
	// A group with nothing on its way has nothing to be late: the clock starts with the next order.
	if present > m.present || g.Health.upcoming() <= 0 {
		m.progress = now
	}
	m.target, m.present = g.Health.CloudProviderTarget, present
	if g.ScaleUp.Status == scaleUpBackoff {
		if m.backoffSince.IsZero() || now.Sub(m.backoffSeen) > backoffMemory {
			m.backoffSince = now
		}
		m.backoffSeen, m.backoffInfo = now, g.ScaleUp.BackoffInfo
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

// Assign tells the tracker which groups the pools claim, and which nodes exist. A group that no pool claims and that has
// no node may belong to any pool that tells its groups by its nodes: it counts for all of them, so that a pool that is
// scaled to nothing is not taken for one that cannot grow.
func (t *Tracker) Assign(claims []Groups, nodes []*corev1.Node) {
	t.orphans = map[string]bool{}
	for i := range t.groups {
		name := t.groups[i].Name
		claimed := slices.ContainsFunc(claims, func(g Groups) bool { return g.Claim(name) })
		if !claimed && !hasNode(name, nodes, false) {
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
	groups := s.Groups.With(nodes)
	found := map[capacity.State][]capacity.Reason{}
	for i := range t.groups {
		g := &t.groups[i]
		if !groups.Claim(g.Name) && !(groups.byNodes && t.orphans[g.Name]) {
			continue
		}
		judgement.Unseen = judgement.Unseen || !hasNode(g.Name, nodes, true)
		state, reason, until := t.judge(g, now)
		found[state] = append(found[state], reason)
		judgement.Until = capacity.Earliest(judgement.Until, until)
		if rose := t.memory[g.Name].rose; rose.After(judgement.LastRise) {
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
func (t *Tracker) judge(g *NodeGroup, now time.Time) (capacity.State, capacity.Reason, time.Time) {
	m := t.memory[g.Name]
	detail := func(r capacity.Reason, format string, args ...any) capacity.Reason {
		r.Detail = g.Name + ": " + fmt.Sprintf(format, args...)
		return r
	}
	size := fmt.Sprintf("%d of %d", g.Health.CloudProviderTarget, g.Health.MaxSize)
	atMax := g.Health.CloudProviderTarget >= g.Health.MaxSize
	upcoming := g.Health.upcoming()
	late := m.progress.Add(t.graces.Provision)
	backoffEnds := time.Time{}
	if g.ScaleUp.Status != scaleUpBackoff && !m.backoffSeen.IsZero() {
		backoffEnds = m.backoffSeen.Add(backoffMemory)
	}
	inBackoff := !m.backoffSeen.IsZero() && (backoffEnds.IsZero() || now.Before(backoffEnds))
	backoffFull := m.backoffSince.Add(t.graces.Backoff)

	switch {
	case g.Health.Status == healthUnhealthy:
		return capacity.Unknown, detail(reasonUnhealthy, "%s", size), time.Time{}
	case upcoming > 0 && now.Before(late):
		return capacity.Growing, detail(reasonProvisioning, "%d to come, %s", upcoming, size), late
	case upcoming > 0 && atMax:
		return capacity.Full, detail(reasonNodesMissing, "%d missing, %s", upcoming, size), time.Time{}
	case atMax:
		return capacity.Full, detail(reasonAtMax, "%s", size), time.Time{}
	case inBackoff && now.Before(backoffFull):
		return capacity.CanGrow, detail(reasonBackingOff, "%s, %s", m.backoffInfo.ErrorCode, size), backoffFull
	case inBackoff:
		return capacity.Full, detail(reasonBackoff, "%s: %s", m.backoffInfo.ErrorCode, m.backoffInfo.ErrorMessage), backoffEnds
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
