package nodegroups

import (
	"slices"
	"time"
)

// Scans shows which pods the autoscaler has had enough time for.
type Scans struct {
	// ScannedBefore is the time before which a pod must have started to wait to have seen four whole loops. All four
	// were run by one autoscaler, and no group was scaled up or began to fail in them. It is zero if there were fewer
	// loops.
	ScannedBefore time.Time `json:"looked,omitzero"`
	// Uncounted is set if the source does not show the autoscaler's loops: time alone counts.
	Uncounted bool `json:"uncounted,omitempty"`
	// Outages are the periods in which the autoscaler ran no loops, the earliest first.
	Outages []Outage `json:"pauses,omitempty"`
}

// Outage is a period in which an autoscaler ran no loops. To is zero while it lasts.
type Outage struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`
}

// WaitedAt returns when a pod that has waited since then will have waited for d, not counting pauses, if no other pause
// begins. It returns zero during a pause.
func (a *Scans) WaitedAt(since time.Time, d time.Duration) time.Time {
	at := since.Add(d)
	for _, p := range a.Outages {
		from := p.From
		if since.After(from) {
			from = since
		}
		switch {
		case !p.To.IsZero() && !p.To.After(since), !from.Before(at):
			// before the pod, or after it has waited
		case p.To.IsZero():
			return time.Time{}
		default:
			at = at.Add(p.To.Sub(from))
		}
	}
	return at
}

// HasScanned reports whether four whole loops have run since the pod began to wait.
func (a *Scans) HasScanned(since time.Time) bool {
	return a.Uncounted || since.Before(a.ScannedBefore)
}

// maxOutages bounds how many outages are remembered: the last ones.
const maxOutages = 20

// OutageBegan returns the pauses with an open one, which began at from unless one was open already.
func OutageBegan(pauses []Outage, from time.Time) []Outage {
	n := len(pauses)
	if n > 0 && pauses[n-1].To.IsZero() {
		return pauses
	}
	return append(slices.Clone(pauses[max(0, n+1-maxOutages):]), Outage{From: from})
}

// OutageEnded returns the pauses with the open one, if there is any, ended.
func OutageEnded(pauses []Outage, at time.Time) []Outage {
	n := len(pauses)
	if n == 0 || !pauses[n-1].To.IsZero() {
		return pauses
	}
	pauses = slices.Clone(pauses)
	pauses[n-1].To = at
	return pauses
}
