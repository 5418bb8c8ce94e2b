// Package breaker is the circuit breaker of a burst pool. By what becomes of the pods on the pool's nodes it decides
// whether more may be sent there. The published states describe the provider. Open: the circuit is closed. Refusing: it
// is open. HalfOpen: it is half-open.
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

// State is whether a burst pool's provider takes pods.
type State string

const (
	// Open means that it takes pods, or has not refused any.
	Open State = "Open"
	// Refusing means that it does not, and that no pod is sent to it for a while.
	Refusing State = "Refusing"
	// HalfOpen means that it did not, and that one pod is sent to it to see.
	HalfOpen State = "HalfOpen"
)

// defaultStart is how long a pod counts as starting in a pool without startWithin.
const defaultStart = 15 * time.Minute

// Rules are what a Breaker goes by.
type Rules struct {
	// StartWithin is how long a pod may take from its binding to its start. The next pods of an owner whose pod was
	// late have more (TimeToStart). 0: no pod is ever late.
	StartWithin time.Duration
	// Alone is how long one pod's pool error must last to close the pool by itself.
	Alone time.Duration
	// Evidence is how long a failure counts, unless a pod starts before.
	Evidence time.Duration
	// FirstBackoff is the first backoff of a refusing pool; it doubles with each failed trial, up to MaxBackoff.
	FirstBackoff, MaxBackoff time.Duration
	// InFlight is how much later than the last pod that was seen when the pool closed a pod may have been bound by a
	// decision from before.
	InFlight time.Duration
	// Template is how long a template is ineligible after the last pod error, and Curable the same for an error that
	// may pass.
	Template, Curable time.Duration
	// Answer is how long the provider may take to refuse a pod: one that has neither started nor been refused by then
	// counts as taken.
	Answer time.Duration
	// Trust is how long Pacing.Recent is trusted after a pod has started. Forget is how long a refused pod counts for
	// its owner. It is long because a Job counts failures for ever: with an hour, a long Job would fail.
	Trust, Forget time.Duration
}

// ban returns how long a template is ineligible after a pod of it was refused.
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

// Pod has the fields of a pod on a burst pool's nodes that a Tracker uses.
type Pod struct {
	UID       types.UID
	Namespace string
	// Owner is the controlling owner's UID, or the pod's own.
	Owner types.UID
	// TemplateKey is alike.TemplateKey of the pod.
	TemplateKey string
	// CountsFailures is CountsFailures of the pod.
	CountsFailures bool
	// MilliCPU is the CPU that the provider bills for the pod, in thousandths. PodOf does not set it.
	MilliCPU int64
	Bound    time.Time
	Started  bool
	// Ending is set if it is being deleted or has ended: it will neither start nor be refused.
	Ending bool
	// Refusal is nil for a pod that was not refused.
	Refusal *refusal.Refusal
}

// PodOf returns what is looked at of the pod.
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

// mayStart is MayStart of the pod.
func (p *Pod) mayStart() bool { return !p.Started && !p.Ending && p.Refusal == nil }

// startLimit returns how long a pod may be starting in a pool with this startWithin; 0 means the default.
func startLimit(startWithin time.Duration) time.Duration {
	if startWithin == 0 {
		return defaultStart
	}
	return startWithin
}

// Status is what a Breaker says of a burst pool. It must not be changed.
type Status struct {
	State State `json:"state,omitempty"`
	// Since is when the pool last entered or left Open.
	Since time.Time `json:"since,omitzero"`
	// Expired is set for a pool that is Open again only because its last refusal is too old: no pod has started there.
	Expired bool `json:"expired,omitempty"`
	// Until is when a Refusing pool becomes half-open.
	Until time.Time `json:"until,omitzero"`
	// Code and Message are the provider's, and Failed is how many pods it refused or did not start since it last
	// started one.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Failed  int    `json:"failed,omitempty"`
	// Starting is how many pods on the pool's nodes may still start.
	Starting int `json:"starting,omitempty"`
	// Templates are those of which the provider has refused pods for what they are, by alike.TemplateKey.
	Templates map[string]Template `json:"templates,omitempty"`
	// Pacing has the limits of all owners; nil: none.
	Pacing *Pacing `json:"pacing,omitempty"`
	// Next is when the status changes without an event; zero if it does not.
	Next time.Time `json:"next,omitzero"`
}

// Template is the provider's answer for a template's pods.
type Template struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// At is when a pod of it was last refused.
	At time.Time `json:"at"`
	// MayPass is set if it may become eligible again without a change.
	MayPass bool `json:"curable,omitempty"`
	// Until is when it is tried again.
	Until time.Time `json:"until,omitzero"`
}

// Breaker is the circuit breaker of one burst pool. Its input are the pods on the pool's nodes; it has no clock of its
// own. It is not safe for concurrent use.
//
// Times of binding are the leader's or the API server's, and only compared with one another: a failure counts for
// nothing once a pod has started that was bound later, and a pool that is closed opens when a pod has started that was
// bound after the last one before it closed.
type Breaker struct {
	rules     Rules
	pods      map[types.UID]*known
	waiting   map[types.UID]*known // those of them that may still start
	counted   map[types.UID]bool   // failures that the leader before has counted, of pods that were not seen yet
	failures  map[types.UID]Failure
	slow      map[types.UID]Lateness // by owner
	templates map[string]Template

	refusedPods   map[types.UID]refusedPod // of owners that count them
	used, running Size                     // what all pods are together, and those that have started
	peak, recent  Size                     // as in Pacing
	lastStart     time.Time                // when a pod was last seen to start, by the clock

	state        State
	since, until time.Time
	rests        int       // how many times in a row the pool has been closed
	code, text   string    // of the failure for which it was last
	newest       time.Time // when the last pod that was ever seen was bound
	accepted     time.Time // when the last pod that started was bound
	closed       time.Time // newest, when the pool closed
	probed       time.Time // newest, when it became half-open
	shut         time.Time // when it was closed last, by the clock
	expired      bool      // it is open because nothing was refused for a while, and not because a pod has started
}

// known is a pod on the pool's nodes.
type known struct {
	Pod
	cause    refusal.Cause // of its refusal, as counted; empty if it was not refused
	late     bool          // it was counted as late
	seen     time.Time     // when it was first seen, by the clock
	slowness int           // its owner's, then
	within   time.Duration // it is late if it takes longer to start; 0: never
}

// Failure is a pod that was refused, or is late, for what may be the pool.
type Failure struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	// Cause is OfPool, Unknown, or empty for a pod that is late.
	Cause   refusal.Cause `json:"class,omitempty"`
	Code    string        `json:"code,omitempty"`
	Message string        `json:"message,omitempty"`
	Bound   time.Time     `json:"bound"`
	// At is when it failed.
	At time.Time `json:"at"`
}

// Lateness counts how often in a row pods of an owner were late.
type Lateness struct {
	Times int       `json:"times"`
	At    time.Time `json:"at"`
}

// New returns one that has seen nothing.
func New(rules Rules) *Breaker {
	return &Breaker{
		rules: rules, state: Open, pods: map[types.UID]*known{}, waiting: map[types.UID]*known{}, counted: map[types.UID]bool{}, failures: map[types.UID]Failure{},
		slow: map[types.UID]Lateness{}, templates: map[string]Template{}, refusedPods: map[types.UID]refusedPod{},
	}
}

// Change says what a Breaker learnt of a pod.
type Change struct {
	// StatusChanged is set if the Status may have changed.
	StatusChanged bool
	// Refused is the refusal, if it is the pod's first.
	Refused *refusal.Refusal
	// Ineligible is set if the pod's template became ineligible, or the pod itself if it has no controlling owner.
	Ineligible bool
}

// See takes in how a pod on the pool's nodes is at the time now.
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
	if seen { // what a provider reports later may be dated back, and a container group that is repaired has started all the same
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

// worse reports whether a refusal with this cause adds something after one with the cause before (empty: none): a
// kubelet that tries again may get another answer.
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

// refused processes a refusal, and reports whether it is the first pod error of the template.
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

// ban makes the pod's template ineligible, as of the time given.
func (b *Breaker) ban(p *Pod, at time.Time) {
	r := p.Refusal
	b.templates = maps.Clone(b.templates) // judgements have the one before
	b.templates[p.TemplateKey] = Template{Code: r.Code, Message: r.Message, MayPass: r.MayPass, At: at, Until: at.Add(b.rules.ban(r.MayPass))}
	trim(b.templates, maxTemplates, func(key string, x Template) (time.Time, string) { return x.At, key })
}

// failed counts a refusal that may be a pool error. If it certainly is a pool error, the known concurrency falls to that of the pods that run now.
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

// Starting returns how many pods may still start at the time now: recently bound pods on the pool's nodes, and those of
// the assumed pods (by UID) whose binding the informer has not seen yet.
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

// startsUntil returns until when the pod counts as starting.
func (k *known) startsUntil(startWithin time.Duration) time.Time {
	return k.Bound.Add(startLimit(startWithin))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
