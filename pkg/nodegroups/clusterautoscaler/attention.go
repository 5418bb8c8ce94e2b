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

// Loop is one of the autoscaler's that ended at the time, by our clock. In a quiet one no group rose or began to fail.
type Loop struct {
	Ended time.Time `json:"ended"`
	Quiet bool      `json:"quiet,omitempty"`
}

// loop takes in that a loop has ended. A pause ends with the status that does.
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

// pause takes in that the autoscaler has not looked since then.
func (a *attention) pause(since time.Time) { a.Pauses = nodegroups.Paused(a.Pauses, since) }

// resume takes in that there is a status of an autoscaler that looks.
func (a *attention) resume(now time.Time) { a.Pauses = nodegroups.Resumed(a.Pauses, now) }

// forget takes in that another autoscaler has taken over.
func (a *attention) forget() { a.loops, a.Looked = nil, time.Time{} }
