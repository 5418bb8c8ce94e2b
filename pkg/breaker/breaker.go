// Package breaker is the circuit breaker of a burst pool. From the outcomes of the pods on the pool's nodes, it decides
// whether the pool may get more pods. The published states describe the provider. Open means that the circuit is
// closed, Refusing that it is open, and HalfOpen that it is half-open.
package breaker

import (
	"cmp"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// State is the state of a burst pool's provider.
type State string

const (
	// Open means that the provider accepts pods, or has not refused any.
	Open State = "Open"
	// Refusing means that the provider refuses pods, and that the pool gets no pods until its backoff ends.
	Refusing State = "Refusing"
	// HalfOpen means that the provider refused pods, and that one pod is sent to it as a test.
	HalfOpen State = "HalfOpen"
)

// defaultStart is how long a pod counts as starting in a pool without startWithin.
const defaultStart = 15 * time.Minute

// Rules has the parameters of a Breaker.
type Rules struct {
	// StartWithin bounds the time from a pod's binding to its start. After an owner's pod was late, the owner's next
	// pods have more time (TimeToStart). 0 means that no pod is ever late.
	StartWithin time.Duration
	// Alone is how long a pool error of one pod must last to close the pool by itself.
	Alone time.Duration
	// Evidence is how long a failure counts, unless a pod that was bound later starts first.
	Evidence time.Duration
	// FirstBackoff is the first backoff of a refusing pool; it doubles with each failed trial, up to MaxBackoff.
	FirstBackoff, MaxBackoff time.Duration
	// InFlight is how long earlier decisions may still bind pods after the pool has closed. It counts from the binding
	// of the last pod that was seen before the pool closed.
	InFlight time.Duration
	// Template is how long a template is ineligible after its last pod error. Curable replaces Template for an error
	// that may pass.
	Template, Curable time.Duration
	// Answer is how long the provider may take to refuse a pod. A pod that has neither started nor been refused by then
	// counts as accepted.
	Answer time.Duration
	// Trust is how long Pacing.Recent is trusted after a pod has started. Forget is how long a refused pod counts for
	// its owner. It is long because a Job counts failures for ever. If Forget were an hour, a long Job would fail.
	Trust, Forget time.Duration
}

// ban returns how long a template is ineligible after one of its pods was refused.
func (r *Rules) ban(curable bool) time.Duration {
	if curable {
		return r.Curable
	}
	return r.Template
}

// NewRules returns the rules for a pool with this startWithin.
func NewRules(startWithin time.Duration) Rules {
	return Rules{
		StartWithin: startWithin, Alone: 2 * time.Minute, Evidence: time.Hour, FirstBackoff: time.Minute, MaxBackoff: 10 * time.Minute,
		InFlight: 5 * time.Second, Template: 24 * time.Hour, Curable: 10 * time.Minute,
		Answer: 10 * time.Second, Trust: 10 * time.Minute, Forget: 24 * time.Hour,
	}
}

// Pod has the fields of a pod on a burst pool's nodes that a Breaker uses.
type Pod struct {
	UID       types.UID
	Namespace string
	// Owner is the UID of the pod's controller or, without a controller, the pod's own UID.
	Owner types.UID
	// TemplateKey is the alike.Template key of the pod.
	TemplateKey string
	// CountsFailures is the result of the function CountsFailures for the pod.
	CountsFailures bool
	// MilliCPU is the CPU that the provider bills for the pod, in thousandths. PodOf does not set it.
	MilliCPU int64
	Bound    time.Time
	Started  bool
	// Ending is set if the pod is being deleted or has ended. Such a pod will neither start nor be refused.
	Ending bool
	// Refusal is nil if the pod was not refused.
	Refusal *refusal.Refusal
}

// PodOf returns the fields of the pod that a Breaker uses, except for MilliCPU.
func PodOf(pod *corev1.Pod) Pod {
	p := Pod{
		UID: pod.UID, Namespace: pod.Namespace, Owner: cmp.Or(refusal.OwnerOf(pod), pod.UID), TemplateKey: alike.Template(pod), CountsFailures: CountsFailures(pod), Bound: refusal.BoundAt(pod),
		Started: refusal.Began(pod), Ending: pod.DeletionTimestamp != nil,
	}
	if r, refused := refusal.Of(pod); refused {
		p.Refusal = &r
	} else if pod.Status.Phase == corev1.PodFailed {
		p.Ending = true
	}
	return p
}

// mayStart reports whether the pod may still start, as refusal.MayStart does.
func (p *Pod) mayStart() bool { return !p.Started && !p.Ending && p.Refusal == nil }

// startLimit returns how long a pod counts as starting in a pool with this startWithin. If startWithin is 0, the
// default applies.
func startLimit(startWithin time.Duration) time.Duration {
	if startWithin == 0 {
		return defaultStart
	}
	return startWithin
}

// Status is the state of a burst pool as its Breaker reports it. It must not be changed.
type Status struct {
	State State `json:"state,omitempty"`
	// Since is when the pool last entered or left Open.
	Since time.Time `json:"since,omitzero"`
	// Expired is set if the pool is Open again only because its last failure is too old, and not because a pod has
	// started.
	Expired bool `json:"expired,omitempty"`
	// Until is when a Refusing pool becomes half-open.
	Until time.Time `json:"until,omitzero"`
	// Code and Message are those of the failure that last closed the pool. Failed counts the pods that may have failed
	// because of the pool since a pod last started.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Failed  int    `json:"failed,omitempty"`
	// Starting counts the pods on the pool's nodes that may still start.
	Starting int `json:"starting,omitempty"`
	// Templates has the templates that are ineligible because of a pod error, by their alike.Template key.
	Templates map[string]Template `json:"templates,omitempty"`
	// Pacing has the pacing of all owners; nil means that there is none.
	Pacing *Pacing `json:"pacing,omitempty"`
	// Next is when the status changes without an event; zero if it does not.
	Next time.Time `json:"next,omitzero"`
}

// Template is the provider's answer for a template's pods.
type Template struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// At is when a pod of the template was last refused.
	At time.Time `json:"at"`
	// MayPass is set if the template may become eligible again without a change.
	MayPass bool `json:"curable,omitempty"`
	// Until is when the template is tried again.
	Until time.Time `json:"until,omitzero"`
}

// Breaker is the circuit breaker of one burst pool. Its inputs are the pods on the pool's nodes. It has no clock of its
// own. It is not safe for concurrent use.
//
// Times of binding come from the leader or the API server, and are only compared with one another. A failure no longer
// counts once a pod that was bound later has started. A pool that has closed opens once a later pod has started. A pod
// is later if it was bound more than InFlight after all pods that were seen before the pool closed.
type Breaker struct {
	rules     Rules
	pods      map[types.UID]*known
	waiting   map[types.UID]*known // the entries of pods that may still start
	counted   map[types.UID]bool   // pods that were not seen yet, and whose failure the previous leader has counted
	failures  map[types.UID]Failure
	slow      map[types.UID]Lateness // by owner
	templates map[string]Template

	refusedPods   map[types.UID]refusedPod // the refused pods of owners that count failures
	used, running Size                     // the sum of all pods, and of the pods that have started
	peak, recent  Size                     // as in Pacing
	lastStart     time.Time                // when a pod was last seen to start, by the clock

	state        State
	since, until time.Time
	rests        int       // how many times in a row the pool has become Refusing
	code, text   string    // those of the failure that last closed the pool
	newest       time.Time // the latest binding time of all pods that have been seen
	accepted     time.Time // the latest binding time of all pods that have started
	closed       time.Time // the value of newest when the pool closed
	probed       time.Time // the value of newest when the pool became half-open
	shut         time.Time // when the pool last closed, by the clock
	expired      bool      // as in Status
}

// known is a pod on the pool's nodes.
type known struct {
	Pod
	cause    refusal.Cause // the cause of the refusal, as counted; empty if the pod was not refused
	late     bool          // whether the pod was counted as late
	seen     time.Time     // when the pod was first seen, by the clock
	slowness int           // the Lateness.Times of its owner when the pod was first seen
	within   time.Duration // the pod is late if it takes longer to start; 0: it is never late
}

// Failure is a pod that was refused or is late, perhaps because of the pool.
type Failure struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	// Cause is PoolError, Unknown, or empty for a late pod.
	Cause   refusal.Cause `json:"class,omitempty"`
	Code    string        `json:"code,omitempty"`
	Message string        `json:"message,omitempty"`
	Bound   time.Time     `json:"bound"`
	// At is when the pod failed.
	At time.Time `json:"at"`
}

// Lateness counts how often in a row pods of an owner were late.
type Lateness struct {
	Times int       `json:"times"`
	At    time.Time `json:"at"`
}

// New returns a Breaker that has seen no pods.
func New(rules Rules) *Breaker {
	return &Breaker{
		rules: rules, state: Open, pods: map[types.UID]*known{}, waiting: map[types.UID]*known{}, counted: map[types.UID]bool{}, failures: map[types.UID]Failure{},
		slow: map[types.UID]Lateness{}, templates: map[string]Template{}, refusedPods: map[types.UID]refusedPod{},
	}
}

// Change is the result of See for one pod.
type Change struct {
	// StatusChanged is set if the Status may have changed.
	StatusChanged bool
	// Refused is the pod's refusal if it is the first for this pod; nil otherwise.
	Refused *refusal.Refusal
	// Ineligible is set if the pod's template became ineligible, or the pod itself if it has no controlling owner.
	Ineligible bool
}

// See processes the state of a pod on the pool's nodes at the time now.
func (b *Breaker) See(pod Pod, now time.Time) Change {
	k, seen := b.pods[pod.UID]
	if !seen {
		k = &known{seen: now, slowness: b.slow[pod.Owner].Times}
		k.within = refusal.TimeToStart(b.rules.StartWithin, k.slowness)
		if b.counted[pod.UID] {
			delete(b.counted, pod.UID)
			k.late = pod.Refusal == nil
			if pod.Refusal != nil {
				k.cause = pod.Refusal.Cause
			}
			b.countRefused(&pod)
		}
		b.pods[pod.UID] = k
	}
	change := Change{StatusChanged: !seen || pod.Ending != k.Ending}
	if seen { // a later report may have an earlier time of binding, and a pod stays started while its container group is repaired
		pod.Bound = latest(k.Bound, pod.Bound)
		pod.Started = pod.Started || k.Started && pod.Refusal == nil
	}
	started := pod.Started && !k.Started
	if seen {
		before := k.Pod
		b.measure(&before, &pod)
	} else {
		b.measure(nil, &pod)
	}
	k.Pod = pod
	if b.newest = latest(b.newest, pod.Bound); k.mayStart() {
		b.waiting[pod.UID] = k
	} else {
		delete(b.waiting, pod.UID)
	}
	switch {
	case started:
		change.StatusChanged = true
		delete(b.failures, pod.UID)
		delete(b.refusedPods, pod.UID)
		b.accepted = latest(b.accepted, pod.Bound)
		if seen {
			b.startedAt(now)
		}
		if now.Before(pod.Bound.Add(b.rules.StartWithin)) {
			delete(b.slow, pod.Owner)
		}
	case pod.Refusal != nil && worse(k.cause, pod.Refusal.Cause):
		change.StatusChanged = true
		if k.cause == "" {
			change.Refused = pod.Refusal
			b.countRefused(&k.Pod)
		}
		k.cause = pod.Refusal.Cause
		change.Ineligible = b.refused(k, now)
	}
	return change
}

// worse reports whether a refusal with this cause adds information to an earlier refusal with the cause before, which
// is empty if there was none. A kubelet that tries again may get a different answer.
func worse(before, cause refusal.Cause) bool {
	switch before {
	case "":
		return true
	case refusal.NeitherError:
		return cause != refusal.NeitherError
	case refusal.Unknown:
		return cause == refusal.PoolError || cause == refusal.PodError
	}
	return false
}

// refused processes a refusal. It reports whether the refusal is the first pod error of the template, or a pod error of
// a pod without a template.
func (b *Breaker) refused(k *known, now time.Time) bool {
	switch k.Refusal.Cause {
	case refusal.PodError:
		delete(b.failures, k.UID)
		if k.TemplateKey == "" {
			return true
		}
		_, old := b.templates[k.TemplateKey]
		b.ban(&k.Pod, now)
		return !old
	case refusal.PoolError, refusal.Unknown:
		b.failed(&k.Pod, now)
	}
	return false
}

// ban makes the pod's template ineligible from the given time on.
func (b *Breaker) ban(p *Pod, at time.Time) {
	r := p.Refusal
	b.templates = maps.Clone(b.templates) // an earlier Status shares the old map
	b.templates[p.TemplateKey] = Template{Code: r.Code, Message: r.Message, MayPass: r.MayPass, At: at, Until: at.Add(b.rules.ban(r.MayPass))}
	trim(b.templates, maxTemplates, func(key string, x Template) (time.Time, string) { return x.At, key })
}

// failed counts a refusal that may be a pool error. If it certainly is a pool error, the known concurrency falls to
// that of the pods that run now.
func (b *Breaker) failed(p *Pod, at time.Time) {
	b.fail(Failure{UID: p.UID, Namespace: p.Namespace, Cause: p.Refusal.Cause, Code: p.Refusal.Code, Message: p.Refusal.Message, Bound: p.Bound, At: at})
	if p.Refusal.Cause == refusal.PoolError {
		b.peak, b.recent = b.running, b.running
	}
}

func (b *Breaker) fail(f Failure) {
	b.failures[f.UID] = f
	trim(b.failures, maxFailures, func(uid types.UID, x Failure) (time.Time, string) { return x.At, string(uid) })
}

// Gone removes a pod that left the pool's nodes, and reports whether the status may have changed.
func (b *Breaker) Gone(uid types.UID) bool {
	k, seen := b.pods[uid]
	if seen {
		b.measure(&k.Pod, nil)
	}
	delete(b.pods, uid)
	delete(b.waiting, uid)
	delete(b.counted, uid)
	return seen
}

// Starting returns the number of pods that have not started at the time now and are still expected to. It counts
// recently bound pods on the pool's nodes, and the assumed pods (placed, by UID) whose binding the informer has not
// delivered yet.
func (b *Breaker) Starting(placed []types.UID, now time.Time) int {
	n := 0
	for _, k := range b.waiting {
		if now.Before(k.startsUntil(b.rules.StartWithin)) {
			n++
		}
	}
	for _, uid := range placed {
		if _, known := b.pods[uid]; !known {
			n++
		}
	}
	return n
}

// startsUntil returns the time until which the pod counts as starting.
func (k *known) startsUntil(startWithin time.Duration) time.Time {
	return k.Bound.Add(startLimit(startWithin))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
