// Package nodegroups determines whether each regular pool can still grow. It defines the four states, their reasons,
// and the immutable view that the scheduling cycle reads.
package nodegroups

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/denial"
)

// State is the state of a node group or of a regular pool.
type State string

const (
	// CanGrow means that the autoscaler may add nodes to the pool.
	CanGrow State = "CanGrow"
	// Growing means that new nodes of the pool are ordered or starting.
	Growing State = "Growing"
	// Full means that the pool cannot get another node.
	Full State = "Full"
	// Unknown means that the pool's source cannot determine the state.
	Unknown State = "Unknown"
)

// States lists all states.
var States = []State{CanGrow, Growing, Full, Unknown}

// Reason explains a state or a decision.
type Reason struct {
	// Code is an upper-camel-case word. The set of codes is bounded, so that codes can be values of a metric label.
	Code string `json:"code"`
	// Sentence is static text for events and statuses.
	Sentence string `json:"message,omitempty"`
	// Detail has facts that differ from case to case, such as error codes, names and numbers. It is for logs and tools
	// only.
	Detail string `json:"detail,omitempty"`
}

// With returns a copy of the reason with the formatted detail.
func (r Reason) With(format string, args ...any) Reason {
	r.Detail = fmt.Sprintf(format, args...)
	return r
}

// ReasonProvisioning is the reason of a group that is Growing because some of its ordered nodes do not exist yet.
var ReasonProvisioning = Reason{Code: "Provisioning", Sentence: "nodes of the pool are on their way"}

// SourceStatus is the status of a pool as its Source returns it.
type SourceStatus struct {
	// State and Reason are the pool's state and the reason for it. They are for display only. The gate reads Groups
	// instead.
	State  State
	Reason Reason
	// Until is when the state of a group next changes without an event; zero if never.
	Until time.Time
	// Groups are the pool's node groups. There is at least one. A source without node groups returns one group without
	// a name.
	Groups []GroupStatus
	Scans
}

// GroupStatus is the status of a node group as a Source returns it.
type GroupStatus struct {
	// Name is the group's name in the source. It is empty for a group that collects nodes of no node group, and for the
	// only group of a pool without node groups.
	Name   string `json:"name,omitempty"`
	State  State  `json:"state"`
	Reason Reason `json:"reason"`
	// Until is when the state changes without an event; zero if it does not.
	Until time.Time `json:"until,omitzero"`
	// Members are the pool's nodes in the group.
	Members []*corev1.Node `json:"-"`
	// Seen are the remembered templates of the group's earlier nodes. While the group has no nodes, these templates are
	// used instead. They also help to find startup taints.
	Seen []NodeTemplate `json:"-"`
	// Open is set if the group may get nodes that match none of the known templates.
	Open bool `json:"open,omitempty"`
	// New describes the nodes that the group may get; nil if nothing is known about such nodes.
	New *NewNodes `json:"new,omitempty"`
	// LastScaleUp is when a scale-up of the group was last seen; zero if never.
	LastScaleUp time.Time `json:"-"`
	// Version changes when the number of ordered nodes changes, when the limits change, and when another autoscaler
	// process takes over. A pod that the group declined before the change no longer counts as declined.
	Version string `json:"-"`
	// Limits changes when the group's limits or, if the source shows it, the template of its new nodes change.
	Limits string `json:"limits,omitempty"`
	// Remaining is the amount of each resource that a CanGrow group may still order; nil if the limits are unknown or
	// there are none. The group cannot grow for a pod whose request for a resource exceeds Remaining.
	Remaining corev1.ResourceList `json:"remaining,omitempty"`
	// BackingOff is set if the autoscaler cannot grow the group now, but may grow it later. A group that is backing off
	// does not count as declining pods.
	BackingOff bool `json:"skipped,omitempty"`
	// MinWait is the minimum time that a pod must wait before the group counts as declining the pod.
	MinWait time.Duration `json:"minWait,omitempty"`
	// ByEvent is set if the autoscaler writes an event on a pod that it cannot place. After this event, MinWait does not
	// apply to the pod. The group declines each pod by itself, and not all pods with the same key.
	ByEvent bool `json:"byEvent,omitempty"`
	// Foreign is set if another autoscaler than the pool's scales the group. The pool's Scans do not apply to the group,
	// and the group declines each pod by itself, after MinWait.
	Foreign bool `json:"foreign,omitempty"`
	// AtMaximum is set if the group is Full because of its maximum size, or would be if no nodes were on their way.
	AtMaximum bool `json:"-"`
	// Arriving is the number of ordered nodes of a Growing group that have no Node object yet. It is for display only.
	// The gate reads State instead.
	Arriving int `json:"arriving,omitempty"`
	// MaxNodes is the group's maximum number of nodes; nil if there is no maximum or it is unknown.
	MaxNodes *int `json:"maxNodes,omitempty"`
}

// bySummary lists the states in order of precedence. A pool's state is the first state in this list that one of the
// pool's groups has.
var bySummary = []State{Growing, CanGrow, Unknown, Full}

// Summarized returns the status with State, Reason and Until derived from the groups. Reason is the reason of the first
// group that has the pool's state, with the details of all groups. Until is the earliest Until. If the groups' states
// differ, each detail begins with the state of its group.
func (j SourceStatus) Summarized() SourceStatus {
	var details []string
	mixed := slices.ContainsFunc(j.Groups, func(g GroupStatus) bool { return g.State != j.Groups[0].State })
	j.State = ""
	for _, state := range bySummary {
		for i := range j.Groups {
			g := &j.Groups[i]
			if g.State != state {
				continue
			}
			if j.State == "" {
				j.State, j.Reason = state, g.Reason
			}
			j.Until = Earliest(j.Until, g.Until)
			switch {
			case mixed && g.Reason.Detail != "":
				details = append(details, string(state)+" "+g.Reason.Detail)
			case g.Reason.Detail != "":
				details = append(details, g.Reason.Detail)
			}
		}
	}
	j.Reason.Detail = strings.Join(details, "; ")
	return j
}

// Group is a node group in the view. It combines the group's status from the source with facts about the group's nodes.
type Group struct {
	GroupStatus
	// Since is when the group entered its state.
	Since time.Time `json:"since,omitzero"`
	// LastActivity is when the scheduler last restarted its wait for the autoscaler. It restarts the wait at a
	// scale-up, at a new node, at a new state or reason, and when the group no longer has starting nodes. A change to
	// the state Unknown does not restart the wait.
	LastActivity time.Time `json:"moved,omitzero"`
	// LastChanged is when the group's Version or its node templates last changed.
	LastChanged time.Time `json:"touched,omitzero"`
	// LimitsChanged is when the group's Limits last changed.
	LimitsChanged time.Time `json:"limitsChanged,omitzero"`
	// Orders are the times of the group's scale-ups in the last Remembered. Of those within a minute, it has the first and
	// the last.
	Orders []time.Time `json:"orders,omitempty"`
	// Spells are the times for which the group was Full, and that ended at most Remembered ago.
	Spells []Spell `json:"spells,omitempty"`
	// Served are the group's services, the youngest node first. A service is left out if a younger node of the same kind
	// with at least as much room served at least as late.
	Served []Service `json:"served,omitempty"`
	// Nodes is the number of the group's nodes. Starting is the number of nodes that are not usable yet, are not being
	// removed, and are younger than the provisionGrace.
	Nodes    int `json:"nodes"`
	Starting int `json:"starting,omitempty"`
	// LastReady is the latest time at which one of the group's usable nodes became ready; zero if no node is usable.
	LastReady time.Time `json:"-"`
	// Usable is the number of nodes that are neither starting nor being removed, whatever their age.
	Usable int `json:"-"`
	// LastArrival is when a node last became usable, or when the scheduler first saw the group.
	LastArrival time.Time `json:"-"`
	// NodeTemplates are the templates of the group's nodes. If the group has no nodes, they are the templates of its
	// earlier nodes. NodeTemplates is empty if no template is known.
	NodeTemplates []NodeTemplate `json:"shapes,omitempty"`

	// Newest is the creation time of the group's newest node; zero if the group has no nodes.
	Newest time.Time `json:"newest,omitzero"`
	// Settled is the last state other than Unknown that the source returned, followed by the code of the state's
	// reason.
	Settled string `json:"settled,omitempty"`
}

// Service shows that a group's new nodes take waiting pods. A pod that was older than the node was bound to it. The pod
// may be any scheduler's, but no DaemonSet's and no static pod.
type Service struct {
	// UID is the node's UID, Made is its creation time, and At is when a pod that is older than the node was last bound to it.
	UID  types.UID `json:"uid,omitempty"`
	Made time.Time `json:"made,omitzero"`
	At   time.Time `json:"at,omitzero"`
	// Node describes the node. Its Allocatable is what DaemonSets and static pods leave.
	Node NodeTemplate `json:"node,omitzero"`
}

// Spell is a time for which a group was Full. From is zero if it is not known when it began, and To is zero while it lasts.
type Spell struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// NotFullSince returns the first time from the given time on at which the group was not Full; zero if there is none yet.
func (g *Group) NotFullSince(t time.Time) time.Time {
	for _, s := range g.Spells {
		if !s.From.After(t) && (s.To.IsZero() || s.To.After(t)) {
			return s.To
		}
	}
	return t
}

// Pool is a pool in the view. It combines the pool's status from the source with facts about the pool's nodes.
type Pool struct {
	State  State  `json:"state,omitempty"`
	Reason Reason `json:"reason,omitzero"`
	// Since is when the pool entered its state.
	Since time.Time `json:"since,omitzero"`
	// Until is when the state of a group, or of a burst pool's provider, next changes without an event; zero if never.
	Until time.Time `json:"until,omitzero"`
	// Known is when a scheduler that knew nothing of the pool first saw it.
	Known time.Time `json:"known,omitzero"`
	Scans
	// Nodes is the number of the pool's nodes. Starting, Leaving and Tainted count the nodes for which IsStarting,
	// IsLeaving and IsTainted return true.
	Nodes    int `json:"nodes"`
	Starting int `json:"starting,omitempty"`
	Leaving  int `json:"leaving,omitempty"`
	Tainted  int `json:"tainted,omitempty"`
	// Groups are the node groups of a regular pool.
	Groups []Group `json:"groups,omitempty"`
	// NodeTemplates are the templates of a burst pool's nodes; empty while the pool has no nodes.
	NodeTemplates []NodeTemplate `json:"shapes,omitempty"`
	// Provider is the status of a burst pool's provider; empty if provider failures are not evaluated.
	Provider breaker.Status `json:"provider,omitzero"`
	// Places has the keys of the place labels (IsPlaceLabel) on the burst pool's nodes, such as zone and host name.
	// NodeTemplates leave place labels out.
	Places map[string]bool `json:"places,omitempty"`
	// Denied is set while an admission rule denies bindings to the pool's nodes.
	Denied *denial.Denied `json:"denied,omitempty"`
}

// Arriving returns the number of the pool's ordered nodes that have no Node object yet.
func (p *Pool) Arriving() int {
	n := 0
	for i := range p.Groups {
		n += p.Groups[i].Arriving
	}
	return n
}

// MaxNodes returns the pool's maximum number of nodes; nil if the pool has no groups, or if one of its groups has no
// known maximum.
func (p *Pool) MaxNodes() *int {
	if len(p.Groups) == 0 {
		return nil
	}
	n := 0
	for i := range p.Groups {
		most := p.Groups[i].MaxNodes
		if most == nil {
			return nil
		}
		n += *most
	}
	return &n
}

// Untolerated returns a lasting taint of a burst pool's node if each node has one that the tolerations do not match. It
// returns nil if one has none, or if no node is known.
func (p *Pool) Untolerated(tolerations []corev1.Toleration) *corev1.Taint {
	var first *corev1.Taint
	for i := range p.NodeTemplates {
		taint, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), p.NodeTemplates[i].Taints, tolerations, nil, true)
		if !untolerated {
			return nil
		}
		first = cmp.Or(first, &taint)
	}
	return first
}

// NewNodes describes nodes that a group may get.
type NewNodes struct {
	// Choices maps the key of each label that all these nodes have to the label's possible values. Nothing is known
	// about the nodes' other labels.
	Choices map[string][]string `json:"choices,omitempty"`
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// NodeTemplate describes nodes with equal labels and equal lasting taints.
type NodeTemplate struct {
	// Labels are the nodes' labels, without place labels (IsPlaceLabel) and without the labels in Varied.
	Labels map[string]string `json:"labels,omitempty"`
	// Varied are the keys of labels whose values differ between many nodes. A new node may have any value of these
	// labels.
	Varied []string `json:"varied,omitempty"`
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint `json:"taints,omitempty"`
	// Allocatable has, for each resource, the largest allocatable amount that one of these nodes has.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// View is the state of all pools at one moment. It is never changed: a new View replaces it.
type View struct {
	// Pools are the pools, in the order of the pool list.
	Pools []Pool `json:"pools"`
	// Built is when the view was made.
	Built time.Time `json:"built,omitzero"`
	// TemplatesUntil is when node templates next change without an event; zero if never.
	TemplatesUntil time.Time `json:"shapesUntil,omitzero"`
}

// Until returns when the view next changes without an event; zero if never.
func (v *View) Until() time.Time {
	until := v.TemplatesUntil
	for i := range v.Pools {
		until = Earliest(until, v.Pools[i].Until)
	}
	return until
}

// AnyFinal reports whether any group is Growing and AtMaximum.
func (v *View) AnyFinal() bool {
	return slices.ContainsFunc(v.Pools, func(p Pool) bool {
		return slices.ContainsFunc(p.Groups, func(g Group) bool { return g.State == Growing && g.AtMaximum })
	})
}

// Earliest returns the earlier of two times. A zero time means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// Latest returns the latest of the times, of which there must be at least one.
func Latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// Source derives the status of one pool.
type Source interface {
	// Status returns the status of the pool's groups at the time now. nodes are the pool's existing nodes.
	Status(nodes []*corev1.Node, now time.Time) SourceStatus
}
