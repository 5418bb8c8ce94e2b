package capacity

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

var reasonStarting = Reason{Code: "NodesStarting", Sentence: "nodes of the pool exist and are not ready yet"}

// WithStarting returns the judgement, corrected for nodes that have just come: a pool that is Full, or may be for some
// pods, with nodes that are not ready is Growing, for at most the grace after each came. That a node became ready before and
// is so no longer does not matter within the grace: it may come back.
func (j Judgement) WithStarting(nodes []*corev1.Node, grace time.Duration, now time.Time) Judgement {
	if j.State != Full && j.Remaining == nil {
		return j
	}
	starting := 0
	var until time.Time
	for _, node := range nodes {
		if late := node.CreationTimestamp.Add(grace); IsStarting(node) && now.Before(late) {
			starting++
			until = Earliest(until, late)
		}
	}
	if starting == 0 {
		return j
	}
	j.State, j.Reason = Growing, reasonStarting
	j.Reason.Detail = fmt.Sprintf("%d of %d nodes", starting, len(nodes))
	j.Until = Earliest(j.Until, until)
	return j
}
