// Package capacity says of each regular pool whether it can still grow. It holds the four states, the reasons they are
// given with, and the immutable view that the scheduling cycle reads.
package capacity

import (
	"time"

	corev1 "k8s.io/api/core/v1"
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

// Reason explains a state or a decision.
type Reason struct {
	// Code is an upper-camel-case word of a bounded set, fit for a metric label.
	Code string
	// Sentence is static text, fit for events and statuses.
	Sentence string
	// Detail adds what differs from case to case: error codes, names, numbers. It is for logs and tools only.
	Detail string
}

// ReasonProvisioning is that of a pool that is Growing because fewer nodes came than were ordered.
var ReasonProvisioning = Reason{Code: "Provisioning", Sentence: "nodes of the pool are on their way"}

// Judgement is what a source says of a pool.
type Judgement struct {
	State  State
	Reason Reason
	// Until is when the state changes by itself; zero if only an event can change it.
	Until time.Time
	// FreshSince is since when the source has been readable without a break; zero while it is not.
	FreshSince time.Time
	// LastRise is when the pool was last seen to be given nodes; zero if never.
	LastRise time.Time
	// Unseen says that the pool may get kinds of nodes of which it has none now.
	Unseen bool
	// New is what is known of nodes that the pool may get and has none of; nil if nothing is.
	New *NewNodes
	// Remaining is what a pool that can grow may still order, by resource: a pod that requests more of one of them is not
	// among those that it can grow for. nil is no limit.
	Remaining corev1.ResourceList
}

// Pool is what is known of one pool: what its source says, and what its nodes say.
type Pool struct {
	Judgement
	// Since is when the pool came into its state.
	Since time.Time
	// Nodes is the number of the pool's nodes, Starting that of those that are starting, Leaving that of those that are being taken away.
	Nodes, Starting, Leaving int
	// LastReady is when one of the pool's nodes that can be used became ready last; zero if there is none.
	LastReady time.Time
	// Shapes are the kinds of nodes that the pool has; empty while it has none.
	Shapes []Shape
}

// NewNodes is what is known of the nodes that a pool may get.
type NewNodes struct {
	// Choices are labels that all of them have, each with the values that it may have. Others are not known.
	Choices map[string][]string
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint
}

// Shape is a kind of node: what the nodes of a pool that look alike to a pod's constraints have in common.
type Shape struct {
	// Labels are the labels without those that only one node has or that depend on where a node was put.
	Labels map[string]string
	// Taints are the lasting taints that keep pods out.
	Taints []corev1.Taint
	// Allocatable is, resource by resource, the most that one node of this kind offers.
	Allocatable corev1.ResourceList
}

// View is what is known of all pools at one moment, by the pools' index in the list. It is replaced as a whole and must
// not be changed.
type View struct {
	Pools []Pool
	// Built is when the view was made.
	Built time.Time
	// ShapesUntil is when the pools' Shapes change by themselves; zero if they do not.
	ShapesUntil time.Time
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
	// Judge returns the pool's state at the time now. nodes are the pool's nodes that exist.
	Judge(nodes []*corev1.Node, now time.Time) Judgement
}
