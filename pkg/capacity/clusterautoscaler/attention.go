package clusterautoscaler

import (
	"time"

	"poolpriority.dev/scheduler/pkg/capacity"
)

// declineLoops is how many loops of the autoscaler a pod must have been there for.
const declineLoops = 4

// attention follows the autoscaler's loops: each ends with a new status.
type attention struct {
	loops  []loop // since the one before the declineLoops-th last quiet one
	looked time.Time
	pauses []capacity.Pause
}

// loop is one that ended at the time, by our clock. In a quiet one no group rose or began to fail.
type loop struct {
	ended time.Time
	quiet bool
}

// loop takes in that a loop has ended. A pause ends with the status that does.
func (a *attention) loop(quiet bool, now time.Time) {
	a.pauses = capacity.Resumed(a.pauses, now)
	a.loops = append(a.loops, loop{now, quiet})
	n := 0
	for i := len(a.loops) - 1; i > 0; i-- {
		if !a.loops[i].quiet {
			continue
		}
		// A loop began, at the earliest, when the one before it had ended.
		if n++; n == declineLoops {
			a.looked = a.loops[i-1].ended
			a.loops = a.loops[i-1:]
			return
		}
	}
}

// pause takes in that the autoscaler has not looked since then.
func (a *attention) pause(since time.Time) { a.pauses = capacity.Paused(a.pauses, since) }

// forget takes in that another autoscaler has taken over.
func (a *attention) forget() { a.loops, a.looked = nil, time.Time{} }

func (a *attention) is() capacity.Attention {
	return capacity.Attention{Looked: a.looked, Pauses: a.pauses}
}
