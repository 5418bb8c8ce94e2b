package clusterautoscaler

import (
	"slices"
	"time"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const (
	// declineLoops is the number of whole quiet loops that must run while a pod waits before the pod can count as
	// declined.
	declineLoops = 4
	// maxLoops bounds the number of remembered loops. The latest ones are kept.
	maxLoops = 50
	// maxInterval is the longest time between two loops. If more time passes, interval takes it for an outage.
	maxInterval = 3 * time.Minute
)

// scans tracks the autoscaler's loops. Each loop ends with a new status.
type scans struct {
	nodegroups.Scans
	loops    []Loop // the latest loops, beginning with the loop before the last declineLoops quiet loops
	degraded bool   // the autoscaler skips pods in its loops
}

// Loop is one loop of the autoscaler. Ended is the loop's end by the scheduler's clock. In a quiet loop, no group was
// scaled up or began to fail.
type Loop struct {
	Ended time.Time `json:"ended"`
	Quiet bool      `json:"quiet,omitempty"`
}

// loop records the end of a loop. It also ends an outage that has not ended. A degraded loop is not quiet.
func (a *scans) loop(quiet bool, now time.Time) {
	a.endOutage(now)
	a.loops = append(a.loops[max(0, len(a.loops)+1-maxLoops):], Loop{now, quiet && !a.degraded})
	a.count()
}

// count finds the last declineLoops quiet loops, and sets ScannedBefore to the earliest possible start of the first of
// these loops.
func (a *scans) count() {
	n := 0
	for i := len(a.loops) - 1; i > 0; i-- {
		if !a.loops[i].Quiet {
			continue
		}
		// A loop begins no earlier than the end of the previous loop.
		if n++; n == declineLoops {
			a.ScannedBefore = a.loops[i-1].Ended
			a.loops = a.loops[i-1:]
			return
		}
	}
}

// interval returns the time between the ends of two loops: of the last declineLoops such times, the second shortest. It
// returns 0 if there are fewer loops, or if one of the times is longer than maxInterval.
func (a *scans) interval() time.Duration {
	var times []time.Duration
	for i := max(1, len(a.loops)-declineLoops); i < len(a.loops); i++ {
		times = append(times, a.loops[i].Ended.Sub(a.loops[i-1].Ended))
	}
	slices.Sort(times)
	if len(times) < declineLoops || times[declineLoops-1] > maxInterval {
		return 0
	}
	return times[1]
}

// beginOutage records that the autoscaler has run no loops since the time since.
func (a *scans) beginOutage(since time.Time) { a.Outages = nodegroups.OutageBegan(a.Outages, since) }

// endOutage ends the last outage at the time now, because an autoscaler has written its status. While the autoscaler
// skips pods, the outage goes on.
func (a *scans) endOutage(now time.Time) {
	if !a.degraded {
		a.Outages = nodegroups.OutageEnded(a.Outages, now)
	}
}
