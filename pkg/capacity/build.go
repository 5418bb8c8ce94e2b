package capacity

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Facts are what the view of one pool is built from.
type Facts struct {
	// Nodes are the pool's nodes that exist.
	Nodes []*corev1.Node
	// Source judges a regular pool. It is nil for a burst pool, which is not judged.
	Source Source
}

// Build returns the view of the pools, by their index in the list, at the time now. A pool that is in the same state as in the view
// before has been since then. provisionGrace is how long nodes that exist and are not ready count as on their way.
func Build(pools []Facts, before *View, provisionGrace time.Duration, now time.Time) *View {
	view := &View{Pools: make([]Pool, len(pools)), Built: now}
	for i := range pools {
		p, nodes := &view.Pools[i], pools[i].Nodes
		p.Nodes = len(nodes)
		for _, node := range nodes {
			if IsLeaving(node) {
				p.Leaving++
			}
			if IsStarting(node) {
				p.Starting++
			} else if since := readySince(node); since.After(p.LastReady) {
				p.LastReady = since
			}
		}
		var until time.Time
		p.Shapes, until = Shapes(nodes, now)
		view.ShapesUntil = Earliest(view.ShapesUntil, until)
		if pools[i].Source == nil {
			continue
		}
		p.Judgement = pools[i].Source.Judge(nodes, now).WithStarting(nodes, provisionGrace, now)
		p.Since = now
		if old := &before.Pools[i]; old.State == p.State && !old.Since.After(now) {
			p.Since = old.Since
		}
	}
	return view
}
