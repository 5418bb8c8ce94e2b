package nodegroups

import (
	"slices"
	"time"
)

// Attention says for which pods the autoscaler behind a source has had its time.
type Attention struct {
	// Looked is such that a pod which has waited since before it was there for four whole loops of one and the same autoscaler in which
	// no group rose or began to fail; zero if there have not been as many.
	Looked time.Time `json:"looked,omitzero"`
	// Uncounted says that the source tells no loops: time alone counts.
	Uncounted bool `json:"uncounted,omitempty"`
	// Pauses are the spells in which the autoscaler did not look, the earliest first.
	Pauses []Pause `json:"pauses,omitempty"`
}

// Pause is a spell in which an autoscaler did not look. One that goes on has no To.
type Pause struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`
}

// WaitedAt is when a pod that has waited since then will have waited for the time d, pauses left out, if no other comes. It is zero during a
// pause.
func (a *Attention) WaitedAt(since time.Time, d time.Duration) time.Time {
	at := since.Add(d)
	for _, p := range a.Pauses {
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

// HasLooked reports whether a pod that has waited since then was there for four whole loops.
func (a *Attention) HasLooked(since time.Time) bool {
	return a.Uncounted || since.Before(a.Looked)
}

// maxPauses bounds how many pauses are remembered: the last ones.
const maxPauses = 20

// Paused returns the pauses with one that began then and goes on, unless one does already.
func Paused(pauses []Pause, from time.Time) []Pause {
	n := len(pauses)
	if n > 0 && pauses[n-1].To.IsZero() {
		return pauses
	}
	return append(slices.Clone(pauses[max(0, n+1-maxPauses):]), Pause{From: from})
}

// Resumed returns the pauses with the one that went on, if one did, ended.
func Resumed(pauses []Pause, at time.Time) []Pause {
	n := len(pauses)
	if n == 0 || !pauses[n-1].To.IsZero() {
		return pauses
	}
	pauses = slices.Clone(pauses)
	pauses[n-1].To = at
	return pauses
}
