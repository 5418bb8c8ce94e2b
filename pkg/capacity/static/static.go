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

// MaxNodes is the source of a pool that is Full once as many of its nodes exist. Nothing says whether more are coming: a pod for which none
// has come for the patience will get none.
type MaxNodes struct {
	Nodes    int32
	Patience time.Duration
}

var _ capacity.Source = MaxNodes{}

// Judge implements capacity.Source.
func (m MaxNodes) Judge(nodes []*corev1.Node, _ time.Time) capacity.Judgement {
	most := int(m.Nodes)
	g := capacity.Judged{State: capacity.CanGrow, Reason: reasonBelowMax, Members: nodes, Patience: m.Patience, MaxNodes: &most}
	if len(nodes) >= most {
		g.State, g.Reason = capacity.Full, reasonAtMax
	}
	g.Reason.Detail = fmt.Sprintf("%d of %d nodes", len(nodes), m.Nodes)
	g.Version = g.Reason.Detail
	return capacity.Judgement{Groups: []capacity.Judged{g}, Attention: capacity.Attention{Uncounted: true}}.Summarized()
}

// Fixed is the source of a pool that never grows.
type Fixed struct{}

var _ capacity.Source = Fixed{}

// Judge implements capacity.Source.
func (Fixed) Judge(nodes []*corev1.Node, _ time.Time) capacity.Judgement {
	most := len(nodes)
	return capacity.Judgement{Groups: []capacity.Judged{{State: capacity.Full, Reason: reasonFixed, Members: nodes, MaxNodes: &most}}}.Summarized()
}
