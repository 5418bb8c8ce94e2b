package clusterautoscaler

import (
	"time"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const (
	// declineLoops is how many loops of the autoscaler a pod must have been there for.
	declineLoops = 4
	// maxLoops bounds how many loops are remembered: the last ones.
	maxLoops = 50
)

// attention follows the autoscaler's loops: each ends with a new status.
type attention struct {
	nodegroups.Attention
	loops []Loop // since the one before the declineLoops-th last quiet one
}

// Loop is one loop of the autoscaler. Ended is by our clock. In a quiet loop no group was scaled up or began to fail.
type Loop struct {
	Ended time.Time `json:"ended"`
	Quiet bool      `json:"quiet,omitempty"`
}

// loop records the end of a loop, which also ends a pause.
func (a *attention) loop(quiet bool, now time.Time) {
	a.resume(now)
	a.loops = append(a.loops[max(0, len(a.loops)+1-maxLoops):], Loop{now, quiet})
	a.count()
}

// count finds the last declineLoops quiet loops.
func (a *attention) count() {
	n := 0
	for i := len(a.loops) - 1; i > 0; i-- {
		if !a.loops[i].Quiet {
			continue
		}
		// A loop began, at the earliest, when the one before it had ended.
		if n++; n == declineLoops {
			a.Looked = a.loops[i-1].Ended
			a.loops = a.loops[i-1:]
			return
		}
	}
}

// pause records that the autoscaler has run no loops since then.
func (a *attention) pause(since time.Time) { a.Pauses = nodegroups.Paused(a.Pauses, since) }

// resume records that an autoscaler has written its status.
func (a *attention) resume(now time.Time) { a.Pauses = nodegroups.Resumed(a.Pauses, now) }

// forget drops the counted loops: another autoscaler has taken over.
func (a *attention) forget() { a.loops, a.Looked = nil, time.Time{} }
