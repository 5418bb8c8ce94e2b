package breaker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/refusal"
)

// CountsFailures reports whether the pod's owner counts a refused pod as a failure. ReplicaSets and similar controllers
// have pods with restartPolicy Always, and count no failures. A Job counts failures towards its backoffLimit: each
// failed pod with restartPolicy Never, and each evicted pod with restartPolicy OnFailure. Other controllers that run
// pods to completion do the same. Source: Kubernetes v1.35, pkg/controller/job, isPodFailed.
func CountsFailures(pod *corev1.Pod) bool {
	return (pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure) && metav1.GetControllerOfNoCopy(pod) != nil
}

// Size is an amount in the units of a provider's quota: the number of pods, and the billed CPU in thousandths.
type Size struct {
	Pods     int   `json:"pods"`
	MilliCPU int64 `json:"milliCPU"`
}

// Plus returns the sum of the two sizes.
func (s Size) Plus(o Size) Size { return Size{s.Pods + o.Pods, s.MilliCPU + o.MilliCPU} }

func (s Size) max(o Size) Size { return Size{max(s.Pods, o.Pods), max(s.MilliCPU, o.MilliCPU)} }

// Within reports whether s has at most as many pods and at most as much CPU as o.
func (s Size) Within(o Size) bool { return s.Pods <= o.Pods && s.MilliCPU <= o.MilliCPU }

// Pacing limits how fast a burst pool gets pods whose owners count failures. Callers must not change a Pacing.
type Pacing struct {
	// Peak is the largest total size of pods that ran at the same time. It is reset when this process starts, and at
	// each pool error.
	Peak Size `json:"peak"`
	// Recent is like Peak, but it is also reset when a pod starts after ten minutes in which no pod started. The
	// provider's quota may have become smaller in these ten minutes.
	Recent Size `json:"recent"`
	// Used is the total size of all pods on the pool's nodes, without those of other schedulers, which Peak and Recent leave
	// out, too.
	Used Size `json:"used"`
	// TrustedUntil is the time until which Recent is trusted. It is zero if the Breaker has seen no pod start, if
	// Status.Failed is above zero, or if the pool is not Open.
	TrustedUntil time.Time `json:"trustedUntil,omitzero"`
	// Owners has the owners with pods that are starting or were refused.
	Owners map[types.UID]OwnerPacing `json:"owners,omitempty"`
}

// OwnerPacing has the times of one owner's pods.
type OwnerPacing struct {
	// Starting has, for each starting pod, the time from which the pod counts as accepted. Refused has, for each
	// refused pod, the time from which the refusal no longer counts.
	Starting []time.Time `json:"starting,omitempty"`
	Refused  []time.Time `json:"refused,omitempty"`
}

// refusedPod is a pod that was refused or did not start in time.
type refusedPod struct {
	owner types.UID
	bound time.Time
}

// Pacing returns the pacing of the owner at the time now. If owner is empty, it returns the pacing of all owners.
// placed has the UIDs of the owner's pods that were placed but may not be bound yet.
func (b *Breaker) Pacing(owner types.UID, placed map[types.UID]string, now time.Time) *Pacing {
	p := &Pacing{Peak: b.peak, Recent: b.recent, Used: b.used, Owners: map[types.UID]OwnerPacing{}}
	if b.state == Open && len(b.failures) == 0 && !b.lastStart.IsZero() {
		p.TrustedUntil = b.lastStart.Add(b.rules.Trust)
	}
	match := func(o types.UID) bool { return owner == "" || o == owner }
	starting := func(owner types.UID, seen time.Time) {
		o := p.Owners[owner]
		o.Starting = append(o.Starting, seen.Add(b.rules.Answer))
		p.Owners[owner] = o
	}
	for _, k := range b.waiting {
		if k.CountsFailures && match(k.Owner) {
			starting(k.Owner, k.seen)
		}
	}
	for uid := range placed {
		if _, known := b.pods[uid]; !known {
			starting(owner, now)
		}
	}
	for _, r := range b.refusedPods {
		if match(r.owner) {
			o := p.Owners[r.owner]
			o.Refused = append(o.Refused, r.bound.Add(b.rules.Forget))
			p.Owners[r.owner] = o
		}
	}
	for _, o := range p.Owners { // a map has no order, but the published status must not change without an event
		slices.SortFunc(o.Starting, time.Time.Compare)
		slices.SortFunc(o.Refused, time.Time.Compare)
	}
	return p
}

// measure adds the pod's state to used, running, peak and recent. times is 1, or -1 to take it away: after a change, first
// take away the old state, and then add the new one.
func (b *Breaker) measure(p *Pod, times int) {
	if p.Foreign { // as for the budget
		return
	}
	size := Size{times, int64(times) * p.MilliCPU}
	b.used = b.used.Plus(size)
	if p.Started {
		b.running = b.running.Plus(size)
	}
	b.peak, b.recent = b.peak.max(b.running), b.recent.max(b.running)
}

// startedAt records that a pod started at the time now.
func (b *Breaker) startedAt(now time.Time) {
	if now.Sub(b.lastStart) >= b.rules.Trust {
		b.recent = b.running
	}
	b.lastStart = now
}

// countRefused remembers a pod that was refused or did not start in time, if its owner counts failures.
func (b *Breaker) countRefused(p *Pod) {
	if p.CountsFailures {
		b.refusedPods[p.UID] = refusedPod{p.Owner, p.Bound}
		trim(b.refusedPods, maxOwners, func(uid types.UID, r refusedPod) (time.Time, string) { return r.bound, string(uid) })
	}
}

// Recall counts the refusal of a pod that has ended, perhaps before this process started. It counts a refusal only
// once. It takes the pod's binding time as the time of the refusal.
func (b *Breaker) Recall(pod Pod, now time.Time) {
	r := pod.Refusal
	if r == nil || pod.Bound.After(now.Add(b.rules.Evidence)) {
		return
	}
	if now.Sub(pod.Bound) < b.rules.Forget {
		b.countRefused(&pod)
	}
	switch r.Cause {
	case refusal.PodError:
		if template, known := b.templates[pod.TemplateKey]; pod.TemplateKey != "" && (!known || template.At.Before(pod.Bound)) {
			b.ban(&pod, pod.Bound)
		}
	case refusal.PoolError, refusal.Unknown:
		if _, known := b.failures[pod.UID]; !known && now.Sub(pod.Bound) < b.rules.Evidence && !pod.Bound.Before(b.accepted) {
			b.newest = latest(b.newest, pod.Bound)
			b.failed(&pod, pod.Bound)
		}
	}
}
