package nodegroups

import (
	"slices"
	"time"
)

// Scans shows which pods the autoscaler has had enough time for.
type Scans struct {
	// ScannedBefore shows when the last four quiet loops began. In a quiet loop, no group was scaled up or began to
	// fail. One autoscaler ran all four. ScannedBefore is the earliest possible start of the first of them: all four
	// scanned the pods that began to wait before. It is zero if there were fewer such loops.
	ScannedBefore time.Time `json:"looked,omitzero"`
	// Uncounted is set if the source does not show the autoscaler's loops. Then only the time for which a pod has
	// waited counts.
	Uncounted bool `json:"uncounted,omitempty"`
	// Outages are the periods in which the autoscaler ran no loops, the earliest first.
	Outages []Outage `json:"pauses,omitempty"`
}

// Outage is a period in which an autoscaler ran no loops. To is zero while the outage lasts.
type Outage struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`
}

// WaitedAt returns when a pod that has waited since the time since will have waited for d. Outages do not count as
// waiting. It returns zero if an outage that has not ended began before then.
func (a *Scans) WaitedAt(since time.Time, d time.Duration) time.Time {
	at := since.Add(d)
	for _, p := range a.Outages {
		from := p.From
		if since.After(from) {
			from = since
		}
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

// HasScanned reports whether four whole loops without a scale-up or a new failure have run since the pod began to wait.
// It is always true if the source does not show loops.
func (a *Scans) HasScanned(since time.Time) bool {
	return a.Uncounted || since.Before(a.ScannedBefore)
}

// maxOutages bounds the number of remembered outages. The latest ones are kept.
const maxOutages = 20

// OutageBegan returns the outages with one more, which began at from. It adds none if the last outage has not ended.
// The argument is not changed.
func OutageBegan(pauses []Outage, from time.Time) []Outage {
	n := len(pauses)
	if n > 0 && pauses[n-1].To.IsZero() {
		return pauses
	}
	return append(slices.Clone(pauses[max(0, n+1-maxOutages):]), Outage{From: from})
}

// OutageEnded returns the outages after the last one has ended at the time at. It changes nothing if the last outage
// has ended before. The argument is not changed.
func OutageEnded(pauses []Outage, at time.Time) []Outage {
	n := len(pauses)
	if n == 0 || !pauses[n-1].To.IsZero() {
		return pauses
	}
	pauses = slices.Clone(pauses)
	pauses[n-1].To = at
	return pauses
}
