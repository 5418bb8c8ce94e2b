package nodegroups

import (
	"slices"
	"time"
)

// Scans shows for which pending pods the autoscaler has had enough time to scale up.
type Scans struct {
	// ScannedBefore is a time before which the first of the last four quiet loops cannot have begun. It is zero until
	// the current autoscaler process has run four whole quiet loops. In a quiet loop, no group was scaled up or began
	// to fail. All four loops scanned every pod that began to wait before ScannedBefore.
	ScannedBefore time.Time `json:"looked,omitzero"`
	// Uncounted is set if the source does not show the autoscaler's loops. In that case, the scheduler considers only
	// for how long a pod has waited.
	Uncounted bool `json:"uncounted,omitempty"`
	// Outages are the periods in which the autoscaler ran no loops or skipped pods, the earliest first.
	Outages []Outage `json:"pauses,omitempty"`
	// LastStatus is for the cluster autoscaler only.
	LastStatus LastStatus `json:"status,omitzero"`
}

// Outage is a period in which an autoscaler ran no loops or skipped pods. To is zero while the outage lasts.
type Outage struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`
}

// WaitedAt returns the time at which a pod has waited for d. The pod began to wait at the time since. Outages do not
// count as waiting. If the last outage began before the end of the wait and has not ended, WaitedAt returns zero.
func (a *Scans) WaitedAt(since time.Time, d time.Duration) time.Time {
	at := since.Add(d)
	for _, p := range a.Outages {
		from := Latest(p.From, since)
		switch {
		case !p.To.IsZero() && !p.To.After(since), !from.Before(at):
			// the outage ended before the pod began to wait, or began after the pod had waited for d
		case p.To.IsZero():
			return time.Time{}
		default:
			at = at.Add(p.To.Sub(from))
		}
	}
	return at
}

// HasScanned reports whether the autoscaler has run four whole quiet loops since the pod began to wait at the time
// since. If the source does not show loops, HasScanned always returns true.
func (a *Scans) HasScanned(since time.Time) bool {
	return a.Uncounted || since.Before(a.ScannedBefore)
}

// maxOutages bounds the number of remembered outages. The latest ones are kept.
const maxOutages = 20

// OutageBegan returns a copy of the outages with a new outage that began at from. If the last outage has not ended,
// OutageBegan returns the outages unchanged. It never modifies its argument.
func OutageBegan(pauses []Outage, from time.Time) []Outage {
	n := len(pauses)
	if n > 0 && pauses[n-1].To.IsZero() {
		return pauses
	}
	if n > 0 && pauses[n-1].To.After(from) { // WaitedAt would count the time twice
		from = pauses[n-1].To
	}
	return append(slices.Clone(pauses[max(0, n+1-maxOutages):]), Outage{From: from})
}

// OutageEnded returns a copy of the outages in which the last outage ended at the time at. If the last outage had
// already ended, OutageEnded returns the outages unchanged. It never modifies its argument.
func OutageEnded(pauses []Outage, at time.Time) []Outage {
	n := len(pauses)
	if n == 0 || !pauses[n-1].To.IsZero() {
		return pauses
	}
	pauses = slices.Clone(pauses)
	pauses[n-1].To = at
	return pauses
}
