package gate

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// Reasons for which a gate that is open for others is closed for a pod whose owner counts failures.
var (
	ReasonRateLimited  = nodegroups.Reason{Code: "RateLimited", Sentence: "node(s) in a burst pool that starts few pods at a time of an owner that counts failures"}
	ReasonFailureLimit = nodegroups.Reason{Code: "FailureLimit", Sentence: "node(s) in a burst pool that refused too many pods of the same owner, which counts failures"}
)

const (
	// maxStarting is how many pods of an owner that counts failures may be starting beyond what ran at once recently. It is one where no pod has started
	// for a while, or since a refusal.
	maxStarting = 2
	// maxRefused is how many pods of such an owner may be refused in a day: half of the backoffLimit that Jobs have by default.
	maxRefused = 3
)

// paced answers for a pod whose owner counts failures, such as a Job's, for the burst pool with index i, which v says is open for it. Up to what
// ran at once recently the owner's pods go freely. Beyond that the provider's quota is unknown, so that few pods try it at a time. Pods of others find
// it out at no cost.
func paced(v Verdict, req Request, p *pool.Pool, i int, provider *refusal.Judgement, now time.Time) Verdict {
	pacing := provider.Pacing
	if !refusal.CountsFailures(req.Pod) {
		return v
	} else if req.Pacing != nil {
		pacing = req.Pacing(i)
	}
	if pacing == nil {
		return v
	}
	owner := metav1.GetControllerOfNoCopy(req.Pod)
	known := pacing.Owners[owner.UID]
	starting, accepted := countAfter(known.Starting, now)
	refused, forgotten := countAfter(known.Refused, now)
	used := pacing.Used
	if req.Burst != nil {
		used = refusal.Size{Pods: req.Burst[i].Pods, MilliCPU: req.Burst[i].MilliCPU}
	}
	next := used.Plus(refusal.Size{Pods: 1, MilliCPU: aci.Billed(req.Pod, p.OnACI()).MilliCPU})
	limit := 1
	if now.Before(pacing.TrustedUntil) {
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
		v.Turn = limit - starting
		return v
	case limit > 0:
		v = Verdict{Reason: ReasonRateLimited, Until: accepted}
		v.Reason.Detail = fmt.Sprintf("%d of %s %s are starting", starting, owner.Kind, owner.Name)
	default:
		v = Verdict{Reason: ReasonFailureLimit, Until: forgotten}
		v.Reason.Detail = fmt.Sprintf("%d of %s %s were refused in a day, until %s or until the pool has run more than %d pods and %s CPUs", refused,
			owner.Kind, owner.Name, forgotten.UTC().Format(time.RFC3339), pacing.Peak.Pods, aci.CPUs(pacing.Peak.MilliCPU))
	}
	return v
}

// countAfter counts the times after now, and returns the first of them; zero if there is none.
func countAfter(times []time.Time, now time.Time) (n int, first time.Time) {
	for _, at := range times {
		if now.Before(at) {
			n++
			first = nodegroups.Earliest(first, at)
		}
	}
	return n, first
}
