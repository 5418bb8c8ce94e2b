package refusal

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// IsCostly reports whether it costs the pod's owner something if a provider refuses the pod. ReplicaSets and their like, whose pods always restart,
// replace one pod after the other and count nothing. A Job counts each pod of restartPolicy Never that fails, and each of OnFailure that is taken
// back, towards its backoffLimit, and fails when that is exceeded; so do others that run pods to their end. Source: Kubernetes v1.35,
// pkg/controller/job, isPodFailed.
func IsCostly(pod *corev1.Pod) bool {
	return (pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure) && metav1.GetControllerOfNoCopy(pod) != nil
}

// Size is what quotas are in: pods, and thousandths of a CPU as the provider bills them.
type Size struct {
	Pods     int   `json:"pods"`
	MilliCPU int64 `json:"milliCPU"`
}

// Plus returns the sum of the two.
func (s Size) Plus(o Size) Size { return Size{s.Pods + o.Pods, s.MilliCPU + o.MilliCPU} }

func (s Size) minus(o Size) Size { return Size{s.Pods - o.Pods, s.MilliCPU - o.MilliCPU} }

// Within reports whether it is no more than the other, in both.
func (s Size) Within(o Size) bool { return s.Pods <= o.Pods && s.MilliCPU <= o.MilliCPU }

// Proven is what the provider has been seen to run at once.
type Proven struct {
	Size
	// At is when it last ran as much.
	At time.Time `json:"at"`
}

// Cost is a pod that the provider refused, or did not start in time, and whose owner counts that.
type Cost struct {
	Owner types.UID `json:"owner"`
	// At is when the pod was bound.
	At time.Time `json:"at"`
}

// Risk is what an owner that counts failures risks with one more pod on a burst pool's nodes.
type Risk struct {
	// Unanswered are its pods there of which nothing is known yet: placed not long ago, and neither started nor refused. Until is when the
	// first of them counts as taken by the provider, if it does not say otherwise; zero if there is none that was bound.
	Unanswered int
	Until      time.Time
	// Lost are its pods that the provider refused lately, and Again is when the first of them is forgotten.
	Lost  int
	Again time.Time
	// Doubt says that the provider has refused pods, or was late with them, and has started none that was bound later.
	Doubt bool
	// Sure says that the provider takes pods: it started one lately, and there is no doubt.
	Sure bool
	// Proven is what the provider has been seen to run at once, lately, and Used what all pods on its nodes are together.
	Proven, Used Size
}

// Risks are what owners that count failures risk with one more pod on a burst pool's nodes. They must not be changed.
type Risks struct {
	// Doubt, Proven and Used are those of each Risk, and SureUntil is until when it is Sure.
	Doubt     bool      `json:"doubt,omitempty"`
	SureUntil time.Time `json:"sureUntil,omitzero"`
	Proven    Size      `json:"proven"`
	Used      Size      `json:"used"`
	// Owners are what is known of those that have pods on their way, or have lost some.
	Owners map[types.UID]OwnerRisk `json:"owners,omitempty"`
}

// OwnerRisk is what is known of one owner.
type OwnerRisk struct {
	// Sent are when each of its pods that are on their way counts as taken, and Lost when each that was lost is forgotten.
	Sent []time.Time `json:"sent,omitempty"`
	Lost []time.Time `json:"lost,omitempty"`
}

// Of returns what the owner risks at the time now.
func (r *Risks) Of(owner types.UID, now time.Time) Risk {
	known := r.Owners[owner]
	risk := Risk{Doubt: r.Doubt, Sure: now.Before(r.SureUntil), Proven: r.Proven, Used: r.Used}
	risk.Unanswered, risk.Until = later(known.Sent, now)
	risk.Lost, risk.Again = later(known.Lost, now)
	return risk
}

// later counts the times that are to come, and returns the first of them; zero if there is none.
func later(times []time.Time, now time.Time) (n int, first time.Time) {
	for _, at := range times {
		if !now.Before(at) {
			continue
		}
		if n++; first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return n, first
}

// risks returns what owners that match risk.
func (t *Tracker) risks(match func(owner types.UID) bool) *Risks {
	r := &Risks{Proven: t.proven.Size, Used: t.used, Doubt: t.state != Open || len(t.failures) > 0}
	if !r.Doubt && !t.taken.IsZero() {
		r.SureUntil = t.taken.Add(t.rules.Warm)
	}
	note := func(owner types.UID, note func(*OwnerRisk)) {
		if !match(owner) {
			return
		}
		if r.Owners == nil {
			r.Owners = map[types.UID]OwnerRisk{}
		}
		known := r.Owners[owner]
		note(&known)
		r.Owners[owner] = known
	}
	for _, k := range t.waiting {
		if k.Costly && !k.taken {
			note(k.Owner, func(o *OwnerRisk) { o.Sent = append(o.Sent, k.seen.Add(t.rules.Answer)) })
		}
	}
	for _, c := range t.costs {
		note(c.Owner, func(o *OwnerRisk) { o.Lost = append(o.Lost, c.At.Add(t.rules.Cost)) })
	}
	for _, known := range r.Owners { // what is published is the same while nothing happens
		slices.SortFunc(known.Sent, time.Time.Compare)
		slices.SortFunc(known.Lost, time.Time.Compare)
	}
	return r
}

// Risk returns what the owner risks at the time now. The pods placed are those of its pods, by their UIDs, that were, whether or not the API server
// says so already.
func (t *Tracker) Risk(owner types.UID, placed []types.UID, now time.Time) Risk {
	r := t.risks(func(o types.UID) bool { return o == owner }).Of(owner, now)
	for _, uid := range placed {
		if _, known := t.pods[uid]; !known {
			r.Unanswered++
		}
	}
	return r
}

// weigh keeps what the pods on the nodes are together: before is the pod as it was known, nil if it was not, and after as it is, nil if it is gone.
func (t *Tracker) weigh(before, after *Pod, now time.Time) {
	if before != nil {
		t.used = t.used.minus(before.size())
		if before.Started {
			t.running = t.running.minus(before.size())
		}
	}
	if after != nil {
		t.used = t.used.Plus(after.size())
		if after.Started {
			t.running = t.running.Plus(after.size())
		}
		if before == nil || after.Started && !before.Started {
			t.prove(now)
		}
	}
}

func (p *Pod) size() Size { return Size{1, p.MilliCPU} }

// prove notes that what runs at the time now can run at once.
func (t *Tracker) prove(now time.Time) {
	if t.proven.Within(t.running) {
		t.proven.At = now
	}
	if !t.running.Within(t.proven.Size) {
		t.proven = Proven{Size{max(t.proven.Pods, t.running.Pods), max(t.proven.MilliCPU, t.running.MilliCPU)}, now}
	}
}

// lost notes that a pod was refused, or is late, whose owner counts that.
func (t *Tracker) lost(p *Pod) {
	if p.Costly {
		t.costs[p.UID] = Cost{p.Owner, p.Bound}
		trim(t.costs, maxFailures, func(uid types.UID, c Cost) (time.Time, string) { return c.At, string(uid) })
	}
}

// forgetRisks drops what is too old to count.
func (t *Tracker) forgetRisks(now time.Time) {
	for _, k := range t.waiting {
		k.taken = k.taken || !now.Before(k.seen.Add(t.rules.Answer))
	}
	maps.DeleteFunc(t.costs, func(_ types.UID, c Cost) bool { return now.Sub(c.At) >= t.rules.Cost })
	if now.Sub(t.proven.At) >= t.rules.Proven {
		t.proven = Proven{t.running, now}
	}
}

// Recall takes in a pod that was refused and has ended, of a time at which nobody may have looked: that it was is counted once, as of its binding.
func (t *Tracker) Recall(pod Pod, now time.Time) {
	r := pod.Refusal
	if r == nil || pod.Bound.After(now.Add(t.rules.Evidence)) {
		return
	}
	if _, known := t.costs[pod.UID]; !known && now.Sub(pod.Bound) < t.rules.Cost {
		t.lost(&pod)
	}
	switch r.Class {
	case OfPod:
		if template, known := t.templates[pod.Template]; pod.Template != "" && (!known || template.At.Before(pod.Bound)) {
			t.ban(&pod, pod.Bound)
		}
	case OfPool, Unknown:
		if _, known := t.failures[pod.UID]; !known && now.Sub(pod.Bound) < t.rules.Evidence && !pod.Bound.Before(t.accepted) {
			t.newest = latest(t.newest, pod.Bound)
			t.failed(&pod, pod.Bound, now)
		}
	}
}
