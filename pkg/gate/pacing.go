package gate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// Reasons for which a gate that is open for others is closed for a pod whose owner counts how many of its pods fail.
var (
	ReasonPaced  = capacity.Reason{Code: "Paced", Sentence: "node(s) in a burst pool to which pods of an owner that counts failures are sent two at a time"}
	ReasonSpared = capacity.Reason{Code: "OwnerSpared", Sentence: "node(s) in a burst pool whose provider has refused pods of the same owner, which counts failures"}
)

const (
	// atOnce is how many pods of an owner that counts failures may be on their way to the provider where it is not known to take them. Where it has
	// just refused one, it is one: the second that is refused closes the pool.
	atOnce = 2
	// bearable is how many pods such an owner may lose in a day: half of the backoffLimit that Jobs have by default.
	bearable = 3
)

// paced answers for a pod whose owner counts failures, such as a Job's, for the burst pool with index i, which v says is open for it. What the
// provider has been seen to run at once, and takes at the moment, the owner's pods are let in for. Beyond that nobody knows where its quota
// ends: they are let in so that no more are refused than the owner is taken to bear. Others find that out at no cost.
func paced(v Verdict, req Request, p *pool.Pool, i int, provider *refusal.Judgement, now time.Time) Verdict {
	if !refusal.IsCostly(req.Pod) {
		return v
	}
	var risk refusal.Risk
	switch {
	case req.Risk != nil:
		risk = req.Risk(i)
	case provider.Risks != nil:
		risk = provider.Risks.Of(metav1.GetControllerOfNoCopy(req.Pod).UID, now)
	default:
		return v
	}
	used := risk.Used
	if req.Burst != nil {
		used = refusal.Size{Pods: req.Burst[i].Pods, MilliCPU: req.Burst[i].MilliCPU}
	}
	proven := used.Plus(refusal.Size{Pods: 1, MilliCPU: billed(req.Pod, p.OnACI()).MilliCPU}).Within(risk.Proven)
	window := atOnce
	if risk.Doubt {
		window = 1
	}
	window = min(window, bearable-risk.Lost)
	switch {
	case proven && risk.Sure:
		return v
	case proven:
		window = max(window, 1)
	}
	switch {
	case risk.Unanswered < window:
		v.Turn = window - risk.Unanswered
		return v
	case window > 0:
		v = Verdict{Reason: ReasonPaced, Until: risk.Until}
		v.Reason.Detail = fmt.Sprintf("%d of %s are on their way", risk.Unanswered, ownerOf(req.Pod))
	default:
		v = Verdict{Reason: ReasonSpared, Until: risk.Again}
		v.Reason.Detail = fmt.Sprintf("%d of %s in a day, until %s or until the pool has run more than %d pods and %s CPUs", risk.Lost, ownerOf(req.Pod),
			risk.Again.UTC().Format(time.RFC3339), risk.Proven.Pods, cpus(risk.Proven.MilliCPU))
	}
	return v
}

func ownerOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner.Kind + " " + owner.Name
}
