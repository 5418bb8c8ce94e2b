// Package static judges pools whose maximum is written in the configuration.
package static

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// Reasons of this source.
var (
	reasonBelowMax = nodegroups.Reason{Code: "BelowMaxNodes", Sentence: "the pool has fewer nodes than its maxNodes"}
	reasonAtMax    = nodegroups.Reason{Code: "AtMaxNodes", Sentence: "the pool has as many nodes as its maxNodes"}
	reasonFixed    = nodegroups.Reason{Code: "Fixed", Sentence: "the pool does not grow"}
)

// MaxNodes is the source of a pool that is Full once as many of its nodes exist. Nothing says whether more are coming:
// a pod for which none has come for the patience will get none.
type MaxNodes struct {
	Nodes    int32
	Patience time.Duration
}

var _ nodegroups.Source = MaxNodes{}

// Judge implements nodegroups.Source.
func (m MaxNodes) Judge(nodes []*corev1.Node, _ time.Time) nodegroups.Judgement {
	most, detail := int(m.Nodes), fmt.Sprintf("%d of %d nodes", len(nodes), m.Nodes)
	g := nodegroups.Judged{State: nodegroups.CanGrow, Reason: reasonBelowMax, Members: nodes, Patience: m.Patience, MaxNodes: &most, Version: detail}
	if len(nodes) >= most {
		g.State, g.Reason = nodegroups.Full, reasonAtMax
	}
	g.Reason.Detail = detail
	return nodegroups.Judgement{Groups: []nodegroups.Judged{g}, Attention: nodegroups.Attention{Uncounted: true}}.Summarized()
}

// Fixed is the source of a pool that never grows.
type Fixed struct{}

var _ nodegroups.Source = Fixed{}

// Judge implements nodegroups.Source.
func (Fixed) Judge(nodes []*corev1.Node, _ time.Time) nodegroups.Judgement {
	most := len(nodes)
	return nodegroups.Judgement{Groups: []nodegroups.Judged{{State: nodegroups.Full, Reason: reasonFixed, Members: nodes, MaxNodes: &most}}}.Summarized()
}
