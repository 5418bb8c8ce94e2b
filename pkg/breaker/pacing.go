package breaker

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/refusal"
)

// CountsFailures reports whether the pod's owner counts a refused pod as a failure. ReplicaSets and similar
// controllers, whose pods always restart, count no failures. Towards its backoffLimit, a Job counts each failed pod
// with restartPolicy Never, and each evicted pod with OnFailure. Other controllers that run pods to completion do the
// same. Source: Kubernetes v1.35, pkg/controller/job, isPodFailed.
func CountsFailures(pod *corev1.Pod) bool {
	return (pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure) && metav1.GetControllerOfNoCopy(pod) != nil
}

// Size is an amount in the units of quotas: pods, and thousandths of a CPU as the provider bills them.
type Size struct {
	Pods     int   `json:"pods"`
	MilliCPU int64 `json:"milliCPU"`
}

// Plus returns the sum of the two sizes.
func (s Size) Plus(o Size) Size { return Size{s.Pods + o.Pods, s.MilliCPU + o.MilliCPU} }

func (s Size) minus(o Size) Size { return Size{s.Pods - o.Pods, s.MilliCPU - o.MilliCPU} }

func (s Size) max(o Size) Size { return Size{max(s.Pods, o.Pods), max(s.MilliCPU, o.MilliCPU)} }

// Within reports whether neither the pods nor the CPU exceed those of the other size.
func (s Size) Within(o Size) bool { return s.Pods <= o.Pods && s.MilliCPU <= o.MilliCPU }

// Pacing limits how fast pods of owners that count failures go to a burst pool. It must not be changed.
type Pacing struct {
	// Peak is the most that ran at once since this process started, or since the last pool error.
	Peak Size `json:"peak"`
	// Recent is like Peak, but it is also reset when a pod starts after ten minutes without a start. In that time, the
	// quota may have fallen without notice.
	Recent Size `json:"recent"`
	// Used is the sum of all pods on the pool's nodes.
	Used Size `json:"used"`
	// TrustedUntil is the time until which Recent is trusted. It is zero if no pod has been seen to start, if a failure
	// counts, or if the pool is not Open.
	TrustedUntil time.Time `json:"trustedUntil,omitzero"`
	// Owners has the owners with pods that are starting or were refused.
	Owners map[types.UID]OwnerPacing `json:"owners,omitempty"`
}

// OwnerPacing has the times of one owner's pods.
type OwnerPacing struct {
	// Starting has, for each pod that is starting, the time at which it counts as accepted. Refused has, for each
	// refused pod, the time at which its refusal is forgotten.
	Starting []time.Time `json:"starting,omitempty"`
	Refused  []time.Time `json:"refused,omitempty"`
}

// refusedPod is a pod that was refused or did not start in time.
type refusedPod struct {
	owner types.UID
	bound time.Time
}

// Pacing returns the pacing of the owner, or of all owners if owner is empty, at the time now. placed has the UIDs of
// the owner's pods that were placed but may not be bound yet.
func (b *Breaker) Pacing(owner types.UID, placed []types.UID, now time.Time) *Pacing {
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
	for _, uid := range placed {
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
	for _, o := range p.Owners { // the published status must not change while nothing happens
		slices.SortFunc(o.Starting, time.Time.Compare)
		slices.SortFunc(o.Refused, time.Time.Compare)
	}
	return p
}

// measure updates the sums and their maxima. before is the pod's old state, or nil if the pod is new. after is its new
// state, or nil if the pod is gone.
func (b *Breaker) measure(before, after *Pod) {
	if before != nil {
		b.used = b.used.minus(before.size())
		if before.Started {
			b.running = b.running.minus(before.size())
		}
	}
	if after != nil {
		b.used = b.used.Plus(after.size())
		if after.Started {
			b.running = b.running.Plus(after.size())
		}
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

func (p *Pod) size() Size { return Size{1, p.MilliCPU} }

// countRefused remembers a pod that was refused or did not start in time, if its owner counts failures.
func (b *Breaker) countRefused(p *Pod) {
	if p.CountsFailures {
		b.refusedPods[p.UID] = refusedPod{p.Owner, p.Bound}
		trim(b.refusedPods, maxFailures, func(uid types.UID, r refusedPod) (time.Time, string) { return r.bound, string(uid) })
	}
}

// forgetRefused drops refused pods that no longer count.
func (b *Breaker) forgetRefused(now time.Time) {
	maps.DeleteFunc(b.refusedPods, func(_ types.UID, r refusedPod) bool { return now.Sub(r.bound) >= b.rules.Forget })
}

// Recall processes a refused pod that has ended, perhaps before this process started. The refusal counts once, as of
// the pod's binding.
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
