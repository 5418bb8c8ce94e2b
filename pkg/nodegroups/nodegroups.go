// Package nodegroups says of each regular pool whether it can still grow. It holds the four states, the reasons they are
// given with, and the immutable view that the scheduling cycle reads.
package nodegroups

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/refusal"
)

// State is what a source says of a regular pool.
type State string

const (
	// CanGrow means that the autoscaler may add nodes to the pool.
	CanGrow State = "CanGrow"
	// Growing means that nodes of the pool are on their way.
	Growing State = "Growing"
	// Full means that the pool has all the nodes it can get.
	Full State = "Full"
	// Unknown means that the source does not say.
	Unknown State = "Unknown"
)

// States are all of them.
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

// ReasonProvisioning is that of a pool that is Growing because fewer nodes came than were ordered.
var ReasonProvisioning = Reason{Code: "Provisioning", Sentence: "nodes of the pool are on their way"}

// Judgement is what a source says of a pool.
type Judgement struct {
	// State and Reason are those of the pool as a whole, for people: the gate goes by the groups.
	State  State
	Reason Reason
	// Until is when a group's state changes by itself; zero if only an event can change one.
	Until time.Time
	// Groups are the pool's node groups; not empty. A source that knows of no groups has one without a name.
	Groups []Judged
	Attention
}

// Judged is what a source says of a node group.
type Judged struct {
	// Name is what the source calls the group. It is empty for nodes that are in none, and for a pool without groups.
	Name   string `json:"name,omitempty"`
	State  State  `json:"state"`
	Reason Reason `json:"reason"`
	// Until is when the state changes by itself; zero if only an event can change it.
	Until time.Time `json:"until,omitzero"`
	// Members are those of the pool's nodes that are in the group.
	Members []*corev1.Node `json:"-"`
	// Seen are the kinds of node that the group was last seen with, for one that has none now.
	Seen []Shape `json:"-"`
	// Open says that the group may get kinds of nodes of which it has none now.
	Open bool `json:"open,omitempty"`
	// New is what is known of nodes that the group may get and has none of; nil if nothing is.
	New *NewNodes `json:"new,omitempty"`
	// Rose is when the group was last seen to be given nodes; zero if never.
	Rose time.Time `json:"-"`
	// Version changes with the number of nodes that were ordered and with the limits: what a group declined before, it may do now.
	Version string `json:"-"`
	// Remaining is what a group that can grow may still order, by resource: a pod that requests more of one of them is not
	// among those that it can grow for. nil is no limit.
	Remaining corev1.ResourceList `json:"remaining,omitempty"`
	// Skipped says that the autoscaler cannot grow the group now, but may in a while, and so declines nobody.
	Skipped bool `json:"skipped,omitempty"`
	// Patience is how long a pod must have waited at the least before the group counts as declining it.
	Patience time.Duration `json:"patience,omitempty"`
	// Arriving is, while the group is Growing, how many nodes were ordered of which no Node exists yet. It is for people: the gate goes by
	// the State.
	Arriving int `json:"arriving,omitempty"`
	// MaxNodes is the most nodes that the group may have; nil if that is not limited, or not known.
	MaxNodes *int `json:"maxNodes,omitempty"`
}

// bySummary are the states, by which of them a pool is said to be in if its groups are in several.
var bySummary = []State{Growing, CanGrow, Unknown, Full}

// Summarized returns the judgement with the state that the pool is said to be in, for the reason of the first group in it, with the details of
// all groups (each with its state if they are in several), and with when one of them changes by itself, if that is before Until.
func (j Judgement) Summarized() Judgement {
	var details []string
	mixed := slices.ContainsFunc(j.Groups, func(g Judged) bool { return g.State != j.Groups[0].State })
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

// Group is what is known of one node group: what its source says, and what its nodes say.
type Group struct {
	Judged
	// Since is when the group came into its state.
	Since time.Time `json:"since,omitzero"`
	// Moved is when something last happened to the group that pods which it could run must give the autoscaler time after: it rose, nodes
	// came, or it came into another state. Times at which it was Unknown are left out.
	Moved time.Time `json:"moved,omitzero"`
	// Touched is when its Version or the kinds of its nodes last changed.
	Touched time.Time `json:"touched,omitzero"`
	// Nodes is the number of the group's nodes, Starting that of those on their way to be usable.
	Nodes    int `json:"nodes"`
	Starting int `json:"starting,omitempty"`
	// LastReady is when one of the group's nodes that can be used became ready last; zero if there is none.
	LastReady time.Time `json:"lastReady,omitzero"`
	// Shapes are the kinds of nodes that the group has or, if it has none, was last seen with; empty while nothing is known.
	Shapes []Shape `json:"shapes,omitempty"`

	// Newest is when the newest of its nodes was made; zero if there is none. It is published beside the view, as Settled is.
	Newest time.Time `json:"-"`
	// Settled is the last state that was not Unknown, with the code of its reason, whatever nodes were starting.
	Settled string `json:"-"`
}

// Pool is what is known of one pool: what its source says, and what its nodes say.
type Pool struct {
	State  State  `json:"state,omitempty"`
	Reason Reason `json:"reason,omitzero"`
	// Since is when the pool came into its state.
	Since time.Time `json:"since,omitzero"`
	// Until is when a group's state changes by itself; zero if none does.
	Until time.Time `json:"until,omitzero"`
	Attention
	// Nodes is the number of the pool's nodes; Starting, Leaving and Tainted are those of which IsStarting, IsLeaving and IsTainted say so.
	Nodes    int `json:"nodes"`
	Starting int `json:"starting,omitempty"`
	Leaving  int `json:"leaving,omitempty"`
	Tainted  int `json:"tainted,omitempty"`
	// Groups are the node groups of a regular pool.
	Groups []Group `json:"groups,omitempty"`
	// Shapes are the kinds of nodes that a burst pool has; empty while it has none.
	Shapes []Shape `json:"shapes,omitempty"`
	// Provider is what a burst pool's provider makes of pods; empty for one that nobody judges.
	Provider refusal.Judgement `json:"provider,omitzero"`
	// Places are those of the labels that say where a node is, and are in no Shape, that a node of a burst pool has.
	Places map[string]bool `json:"places,omitempty"`
}

// Arriving is how many nodes of the pool were ordered of which no Node exists yet.
func (p *Pool) Arriving() int {
	n := 0
	for i := range p.Groups {
		n += p.Groups[i].Arriving
	}
	return n
}

// MaxNodes is the most nodes that the pool may have; nil if that is not limited, or not known, for one of its groups.
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

// NewNodes is what is known of the nodes that a pool may get.
type NewNodes struct {
	// Choices are labels that all of them have, each with the values that it may have. Others are not known.
	Choices map[string][]string `json:"choices,omitempty"`
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// Shape is a kind of node: what the nodes of a pool that look alike to a pod's constraints have in common.
type Shape struct {
	// Labels are the labels without those that only one node has or that depend on where a node was put.
	Labels map[string]string `json:"labels,omitempty"`
	// Varied are the keys of labels that nearly each node has another value of: they make no kind, and nothing is known of them.
	Varied []string `json:"varied,omitempty"`
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint `json:"taints,omitempty"`
	// Allocatable is, resource by resource, the most that one node of this kind offers.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// View is what is known of all pools at one moment, by the pools' index in the list. It is replaced as a whole and must
// not be changed.
type View struct {
	Pools []Pool `json:"pools"`
	// Built is when the view was made.
	Built time.Time `json:"built,omitzero"`
	// ShapesUntil is when kinds of nodes change by themselves; zero if they do not.
	ShapesUntil time.Time `json:"shapesUntil,omitzero"`
}

// Until is the earliest time at which a state in the view changes by itself; zero if none does.
func (v *View) Until() time.Time {
	until := v.ShapesUntil
	for i := range v.Pools {
		until = Earliest(until, v.Pools[i].Until)
	}
	return until
}

// Earliest returns the earlier of two times of which a zero one means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// Source judges one pool by one outside fact.
type Source interface {
	// Judge says how the pool's groups are at the time now. nodes are the pool's nodes that exist.
	Judge(nodes []*corev1.Node, now time.Time) Judgement
}
