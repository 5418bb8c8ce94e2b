// Package static judges pools whose maximum is written in the configuration.
package static

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/capacity"
)

// Reasons of this source.
var (
	reasonBelowMax = capacity.Reason{Code: "BelowMaxNodes", Sentence: "the pool has fewer nodes than its maxNodes"}
	reasonAtMax    = capacity.Reason{Code: "AtMaxNodes", Sentence: "the pool has as many nodes as its maxNodes"}
	reasonFixed    = capacity.Reason{Code: "Fixed", Sentence: "the pool does not grow"}
)

// MaxNodes is the source of a pool that is Full once this many of its nodes exist.
type MaxNodes int32

var _ capacity.Source = MaxNodes(0)

// Judge implements capacity.Source.
func (m MaxNodes) Judge(nodes []*corev1.Node, _ time.Time) capacity.Judgement {
	state, reason := capacity.CanGrow, reasonBelowMax
	if len(nodes) >= int(m) {
		state, reason = capacity.Full, reasonAtMax
	}
	reason.Detail = fmt.Sprintf("%d of %d nodes", len(nodes), m)
	return capacity.Judgement{State: state, Reason: reason}
}

// Fixed is the source of a pool that never grows.
type Fixed struct{}

var _ capacity.Source = Fixed{}

// Judge implements capacity.Source.
func (Fixed) Judge([]*corev1.Node, time.Time) capacity.Judgement {
	return capacity.Judgement{State: capacity.Full, Reason: reasonFixed}
}
