package gatekeeper

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// maxProbes is how many pods are woken, each probeInterval, for a burst pool that takes one to see whether its provider takes pods again: the
// others have a node elsewhere by then, or are gone.
const (
	maxProbes     = 3
	probeInterval = time.Second
)

// probe is a held pod that the burst pool with the index may let in, to see whether its provider takes pods again.
type probe struct {
	*heldPod
	pool int
}

// probe adds to opened the few of the pods that may be let in to see whether a provider takes pods again, and returns when the next are due: those
// that have been held for the longest, and no others before the first have been tried.
func (h *held) probe(pods []probe, opened map[string]*v1.Pod, now time.Time) time.Time {
	if len(pods) == 0 {
		return time.Time{}
	}
	if due := h.probed.Add(probeInterval); now.Before(due) {
		return due
	}
	slices.SortStableFunc(pods, func(a, b probe) int { return h.firstFailed[a.pod.UID].Compare(h.firstFailed[b.pod.UID]) })
	for _, p := range pods[:min(len(pods), maxProbes)] {
		p.open[p.pool] = true
		opened[p.pod.Namespace+"/"+p.pod.Name] = p.pod
	}
	h.probed = now
	return now.Add(probeInterval)
}
