// Package nodegroups determines whether each regular pool can still grow. It holds the four states, their reasons, and
// the immutable view that the scheduling cycle reads.
package nodegroups

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/breaker"
)

// State is the state of a node group or of a regular pool.
type State string

const (
	// CanGrow means that the autoscaler may add nodes to the pool.
	CanGrow State = "CanGrow"
	// Growing means that nodes of the pool are on their way.
	Growing State = "Growing"
	// Full means that the pool has all the nodes it can get.
	Full State = "Full"
	// Unknown means that the source has no answer.
	Unknown State = "Unknown"
)

// States lists all states.
var States = []State{CanGrow, Growing, Full, Unknown}

// Reason explains a state or a decision.
type Reason struct {
	// Code is an upper-camel-case word of a bounded set, fit for a metric label.
	Code string `json:"code"`
	// Sentence is static text, fit for events and statuses.
	Sentence string `json:"message,omitempty"`
	// Detail adds what differs from case to case: error codes, names, numbers. It is for logs and tools only.
	Detail string `json:"detail,omitempty"`
}

// With returns the reason with the detail.
func (r Reason) With(format string, args ...any) Reason {
	r.Detail = fmt.Sprintf(format, args...)
	return r
}

// ReasonProvisioning is the reason of a group that is Growing because ordered nodes have not come yet.
var ReasonProvisioning = Reason{Code: "Provisioning", Sentence: "nodes of the pool are on their way"}

// SourceStatus is a source's answer for a pool.
type SourceStatus struct {
	// State and Reason are those of the pool. They are for display only: the gate reads the groups.
	State  State
	Reason Reason
	// Until is when the state of a group next changes without an event; zero if never.
	Until time.Time
	// Groups are the pool's node groups, at least one. A source without node groups returns one group without a name.
	Groups []GroupStatus
	Scans
}

// GroupStatus is a source's answer for a node group.
type GroupStatus struct {
	// Name is the source's name of the group. It is empty for nodes in no group, and for a pool without groups.
	Name   string `json:"name,omitempty"`
	State  State  `json:"state"`
	Reason Reason `json:"reason"`
	// Until is when the state changes without an event; zero if it does not.
	Until time.Time `json:"until,omitzero"`
	// Members are the pool's nodes in the group.
	Members []*corev1.Node `json:"-"`
	// Seen are the remembered templates of the group's earlier nodes. They stand in for its nodes while the group has
	// none, and help to find startup taints.
	Seen []NodeTemplate `json:"-"`
	// Open is set if the group may get nodes that match none of the known templates.
	Open bool `json:"open,omitempty"`
	// New describes further nodes that the group may get; nil if nothing is known of them.
	New *NewNodes `json:"new,omitempty"`
	// LastScaleUp is when a scale-up of the group was last seen; zero if never.
	LastScaleUp time.Time `json:"-"`
	// Version changes with the number of ordered nodes, with the limits, and when another autoscaler takes over. A new
	// version drops remembered declines.
	Version string `json:"-"`
	// Remaining is how much of each resource a group in state CanGrow may still order; nil if there is no limit, or if
	// it is unknown. The group cannot grow for a pod that requests more of a resource than remains.
	Remaining corev1.ResourceList `json:"remaining,omitempty"`
	// BackingOff is set if the autoscaler cannot grow the group now, but may later. Such a group declines no pod.
	BackingOff bool `json:"skipped,omitempty"`
	// MinWait is the minimum time that a pod must wait before the group counts as declining the pod.
	MinWait time.Duration `json:"minWait,omitempty"`
	// Arriving is the number of nodes of a Growing group that were ordered and have no Node yet. It is for display
	// only: the gate reads State.
	Arriving int `json:"arriving,omitempty"`
	// MaxNodes is the group's maximum number of nodes; nil if there is none, or if it is unknown.
	MaxNodes *int `json:"maxNodes,omitempty"`
}

// bySummary lists the states by precedence. A pool has the first of these states that one of its groups has.
var bySummary = []State{Growing, CanGrow, Unknown, Full}

// Summarized returns the status with the pool's state, the reason of the first group in that state, the details of all
// groups, and the earliest Until. If the groups' states differ, each detail names its group's state.
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

// Group is a node group in the view: the source's status of it, and what its nodes show.
type Group struct {
	GroupStatus
	// Since is when the group entered its state.
	Since time.Time `json:"since,omitzero"`
	// LastActivity is when the wait for the autoscaler last began anew. These events begin it: a scale-up, a new node,
	// another state or reason, and the moment at which the last starting node is usable or late. State Unknown is
	// ignored.
	LastActivity time.Time `json:"moved,omitzero"`
	// LastChanged is when the group's Version or its node templates last changed.
	LastChanged time.Time `json:"touched,omitzero"`
	// Nodes is the number of the group's nodes. Starting is the number of those that are not usable yet and not late.
	Nodes    int `json:"nodes"`
	Starting int `json:"starting,omitempty"`
	// LastReady is the latest time at which one of the group's usable nodes became ready; zero if no node is usable.
	LastReady time.Time `json:"lastReady,omitzero"`
	// NodeTemplates are the templates of the group's nodes. If the group has no nodes, they are the templates of its
	// earlier nodes; empty if none are known.
	NodeTemplates []NodeTemplate `json:"shapes,omitempty"`

	// Newest is the creation time of the group's newest node; zero if the group has no nodes. Newest and Settled are
	// published beside the view.
	Newest time.Time `json:"-"`
	// Settled is the last state, other than Unknown, that the source returned, with the code of its reason.
	Settled string `json:"-"`
}

// Pool is a pool in the view: the source's status of it, and what its nodes show.
type Pool struct {
	State  State  `json:"state,omitempty"`
	Reason Reason `json:"reason,omitzero"`
	// Since is when the pool entered its state.
	Since time.Time `json:"since,omitzero"`
	// Until is when the state of a group, or of a burst pool's provider, next changes without an event; zero if never.
	Until time.Time `json:"until,omitzero"`
	Scans
	// Nodes is the number of the pool's nodes. Starting, Leaving and Tainted count the nodes for which IsStarting,
	// IsLeaving and IsTainted hold.
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
	// Places has the keys of the burst pool's node labels whose values differ between nodes of one template, such as
	// zone and host name (IsPlaceLabel). NodeTemplates leave these labels out.
	Places map[string]bool `json:"places,omitempty"`
}

// Arriving returns the number of nodes of the pool that were ordered and have no Node yet.
func (p *Pool) Arriving() int {
	n := 0
	for i := range p.Groups {
		n += p.Groups[i].Arriving
	}
	return n
}

// MaxNodes returns the pool's maximum number of nodes; nil if one of its groups has no maximum or an unknown one.
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

// NewNodes describes nodes that a group may get.
type NewNodes struct {
	// Choices maps each label that all these nodes have to its possible values. Nothing is known of other labels.
	Choices map[string][]string `json:"choices,omitempty"`
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// NodeTemplate describes nodes that are alike for a pod's constraints.
type NodeTemplate struct {
	// Labels are the nodes' labels, without place labels (IsPlaceLabel) and Varied ones.
	Labels map[string]string `json:"labels,omitempty"`
	// Varied are the keys of labels whose value differs on nearly every node. A new node may have any value of them.
	Varied []string `json:"varied,omitempty"`
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint `json:"taints,omitempty"`
	// Allocatable is, for each resource, the most that one of these nodes offers.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// View is the state of all pools at one moment. It is never changed: a new View replaces it.
type View struct {
	// Pools are the pools, by their index in the list.
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

// Earliest returns the earlier of two times. A zero time means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// Source derives the status of one pool.
type Source interface {
	// Status returns the status of the pool's groups at the time now. nodes are the pool's existing nodes.
	Status(nodes []*corev1.Node, now time.Time) SourceStatus
}
