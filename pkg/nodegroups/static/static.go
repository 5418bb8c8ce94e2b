// Package static has the sources of pools that have a configured maximum number of nodes, or that never grow.
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

// MaxNodes is the source of a pool that is Full once its number of nodes reaches the field Nodes. The source does not
// see ordered VMs that have no Node object yet. If a pod has waited for MinWait and the pool got no new node meanwhile,
// the pod counts as declined.
type MaxNodes struct {
	Nodes   int32
	MinWait time.Duration
}

// Status implements nodegroups.Source.
func (m MaxNodes) Status(nodes []*corev1.Node, _ time.Time) nodegroups.SourceStatus {
	most, detail := int(m.Nodes), fmt.Sprintf("%d of %d nodes", len(nodes), m.Nodes)
	g := nodegroups.GroupStatus{State: nodegroups.CanGrow, Reason: reasonBelowMax, Members: nodes, MinWait: m.MinWait, MaxNodes: &most, Version: detail, Limits: fmt.Sprint(most)}
	if len(nodes) >= most {
		g.State, g.Reason, g.AtMaximum = nodegroups.Full, reasonAtMax, true
	}
	g.Reason.Detail = detail
	return nodegroups.SourceStatus{Groups: []nodegroups.GroupStatus{g}, Scans: nodegroups.Scans{Uncounted: true}}.Summarized()
}

// Fixed is the source of a pool that never grows.
type Fixed struct{}

// Status implements nodegroups.Source.
func (Fixed) Status(nodes []*corev1.Node, _ time.Time) nodegroups.SourceStatus {
	most := len(nodes)
	return nodegroups.SourceStatus{Groups: []nodegroups.GroupStatus{{State: nodegroups.Full, Reason: reasonFixed, Members: nodes, MaxNodes: &most, AtMaximum: true}}}.Summarized()
}
