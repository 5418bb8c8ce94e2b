package gate

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// maxStarting is the maximum number of starting pods of an owner that counts failures, once the pool exceeds
	// Pacing.Recent. The maximum is 1 if no pod has started in the last ten minutes or since the last refusal.
	maxStarting = 2
	// maxRefused is the maximum number of refused pods in a day of an owner that counts failures. It is half of the
	// default backoffLimit of Jobs.
	maxRefused = 3
)

// pacing limits the pods of an owner that counts failures, such as a Job. It closes the gate while too many of the
// owner's pods are starting or were refused. There is no limit while the pool stays within Pacing.Recent, the pods and
// CPUs that ran at the same time recently. Above Pacing.Recent, the provider's quota is unknown, and only a few of the
// owner's pods may start at a time.
func (e *evaluation) pacing(i int, v Verdict) Verdict {
	if !breaker.CountsFailures(e.req.Pod) {
		return v
	}
	pacing := e.view.Pools[i].Provider.Pacing
	if e.req.Pacing != nil {
		pacing = e.req.Pacing(i)
	}
	if pacing == nil {
		return v
	}
	owner, known := metav1.GetControllerOfNoCopy(e.req.Pod), pacing.Owners[refusal.OwnerOf(e.req.Pod)]
	starting, accepted := countAfter(known.Starting, e.now)
	refused, _ := countAfter(known.Refused, e.now)
	used := pacing.Used
	if e.req.Burst != nil {
		used = breaker.Size{Pods: e.req.Burst[i].Pods, MilliCPU: e.req.Burst[i].MilliCPU}
	}
	next := used.Plus(breaker.Size{Pods: 1, MilliCPU: aci.Billed(e.req.Pod, e.Pools.At(i).OnACI()).MilliCPU})
	limit := 1
	if e.now.Before(pacing.TrustedUntil) {
		if next.Within(pacing.Recent) {
			return v
		}
		limit = maxStarting
	}
	if limit = min(limit, maxRefused-refused); next.Within(pacing.Peak) {
		limit = max(limit, 1)
	}
	switch {
	case starting < limit:
		v.Quota = limit - starting
	case limit > 0:
		v = Verdict{Reason: ReasonRateLimited.With("%d of %s %s are starting", starting, owner.Kind, owner.Name), Until: accepted}
	default:
		forgotten := known.Refused[len(known.Refused)-maxRefused] // they are sorted
		v = Verdict{Until: forgotten, Reason: ReasonFailureLimit.With("within a day, %d pods of %s %s were refused or did not start in time; the gate stays closed until %s, or until the pool has run more than %d pods and %s CPUs", refused,
			owner.Kind, owner.Name, forgotten.UTC().Format(time.RFC3339), pacing.Peak.Pods, aci.CPUs(pacing.Peak.MilliCPU))}
	}
	return v
}

// countAfter returns the number of times after now, and the earliest time after now; zero if there is none.
func countAfter(times []time.Time, now time.Time) (n int, first time.Time) {
	for _, at := range times {
		if now.Before(at) {
			n++
			first = nodegroups.Earliest(first, at)
		}
	}
	return n, first
}
