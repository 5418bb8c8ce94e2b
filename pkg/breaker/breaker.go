// Package breaker is the circuit breaker of a burst pool. From the outcomes of the pods on the pool's nodes, it decides
// whether the pool may get more pods. The states are named after the provider, not after a circuit: Open is a closed
// circuit, and Refusing is an open circuit.
package breaker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// State is the state of a burst pool's provider.
type State string

const (
	// Open means that the provider has refused no pods yet, or that it accepts pods again.
	Open State = "Open"
	// Refusing means that the provider refuses pods, and that the pool gets no pods until its backoff ends.
	Refusing State = "Refusing"
	// HalfOpen means that the backoff has ended, and that the pool gets one pod as a test of the provider.
	HalfOpen State = "HalfOpen"
)

// defaultStart is how long a pod counts as starting in a pool without startWithin.
const defaultStart = 15 * time.Minute

// Rules has the parameters of a Breaker.
type Rules struct {
	// StartWithin bounds the time from a pod's binding to its start. A pod that takes longer is late. If an owner's pod
	// was late, the owner's next pods may take longer (refusal.TimeToStart). 0 means that no pod is ever late.
	StartWithin time.Duration
	// Alone is the time after which the pool error of a single pod makes the pool Refusing, if the pod still exists.
	Alone time.Duration
	// Evidence is how long a failure counts. If a pod that was bound later starts, the failure stops counting at once.
	Evidence time.Duration
	// FirstBackoff is the first backoff of a refusing pool. The backoff doubles each time that the test pod fails, up
	// to MaxBackoff.
	FirstBackoff, MaxBackoff time.Duration
	// InFlight is how long the scheduler may still bind pods to a pool that has become Refusing, because it chose the
	// pool before. The time starts with the latest binding that was seen before the pool became Refusing.
	InFlight time.Duration
	// Template is how long a pod template is ineligible after its last pod error. If the error may pass without a
	// change of the pod, Curable applies instead of Template.
	Template, Curable time.Duration
	// Answer is how long the provider may take to refuse a pod. After this time, a pod that has neither started nor
	// been refused counts as accepted.
	Answer time.Duration
	// Trust is how long Pacing.Recent is trusted after a pod has started. Forget is how long Pacing.Owners lists a
	// refused pod of the owner. Forget is long because a Job never forgets a failed pod. If Forget were an hour, a long
	// Job would exceed its backoffLimit.
	Trust, Forget time.Duration
	// Creates is how many creates the Breaker remembers.
	Creates int
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

// Pod describes a pod on a burst pool's nodes. It has only the fields that a Breaker uses.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Owner is the key of the pod's controller (refusal.OwnerOf). If the pod has none, Owner is the pod's own UID.
	Owner types.UID
	// TemplateKey is the alike.Template key of the pod.
	TemplateKey string
	// CountsFailures is the result of the function CountsFailures for the pod.
	CountsFailures bool
	// Foreign is set if another scheduler bound the pod. Its lateness and its refusals with unknown codes count for nobody.
	// PodOf does not set it.
	Foreign bool
	// MilliCPU is the CPU that the provider bills for the pod now, in thousandths. PodOf does not set it.
	MilliCPU int64
	// Billed is what the provider bills for the pod while it runs, without the namespace. PodOf does not set it.
	Billed  Scope
	Bound   time.Time
	Started bool
	// Ending is set if the pod is being deleted, or has failed without being refused. Such a pod will not start.
	Ending bool
	// Refusal is nil if the pod was not refused.
	Refusal *refusal.Refusal
}

// PodOf returns the fields of the pod that a Breaker uses, as of now, except for Foreign, MilliCPU and Billed.
func PodOf(pod *corev1.Pod, now time.Time) Pod {
	p := Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Owner: cmp.Or(refusal.OwnerOf(pod), pod.UID), TemplateKey: alike.Template(pod), CountsFailures: CountsFailures(pod), Bound: refusal.BoundAt(pod, now),
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

// Status is the state of a burst pool as its Breaker reports it. Callers must not change a Status.
type Status struct {
	State State `json:"state,omitempty"`
	// Since is when the pool last became Open, or last stopped being Open.
	Since time.Time `json:"since,omitzero"`
	// Expired is set if the pool became Open again because its last failure was too old. It is not set if the pool
	// became Open again because a pod started.
	Expired bool `json:"expired,omitempty"`
	// Until is when a Refusing pool becomes half-open.
	Until time.Time `json:"until,omitzero"`
	// Code and Message describe the failure that last made the pool Refusing. Failed counts the pods that were late, or
	// were refused with the cause PoolError or Unknown, and whose failure still counts (Rules.Evidence).
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Failed  int    `json:"failed,omitempty"`
	// Tests are the pods that test the provider, if the pool is not Open.
	Tests Tests `json:"tests,omitempty"`
	// Templates has the templates that are ineligible because of a pod error, by the key that alike.Template returns.
	Templates map[string]Template `json:"templates,omitempty"`
	// Closings has the pods for which the pool is closed although it may be Open.
	Closings []Closing `json:"closings,omitempty"`
	// Creates are the last pods that were bound to the pool's nodes.
	Creates Creates `json:"creates,omitempty"`
	// Pacing is the pacing of all owners, or nil if there is none.
	Pacing *Pacing `json:"pacing,omitempty"`
	// Next is when the status next changes without an event; zero if it changes only with an event.
	Next time.Time `json:"next,omitzero"`
}

// Template describes why the provider refuses the pods of a template.
type Template struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// At is when a pod of the template was last refused.
	At time.Time `json:"at"`
	// MayPass is set if the provider may later accept pods of the same, unchanged template.
	MayPass bool `json:"curable,omitempty"`
	// Until is when the template becomes eligible again.
	Until time.Time `json:"until,omitzero"`
}

// Breaker is the circuit breaker of one burst pool. Its inputs are the pods on the pool's nodes, and the current time,
// which each caller passes. It is not safe for concurrent use.
//
// A failure stops counting once a pod that was bound later has started. A Refusing or HalfOpen pool becomes Open once a
// new pod has started. The new pod must have been bound more than InFlight after all pods that were seen before the
// pool became Refusing. Binding times come from the clocks of leaders and the API server, so these rules never compare
// them with the caller's clock.
type Breaker struct {
	rules     Rules
	pods      map[types.UID]*known
	waiting   map[types.UID]*known // the entries of pods that may still start
	counted   map[types.UID]bool   // pods whose failure the previous leader counted, and that this Breaker has not seen yet
	failures  map[types.UID]Failure
	slow      map[types.UID]Lateness  // by owner
	evictions map[types.UID]evictions // by owner
	templates map[string]Template
	closings  map[Scope]Closing
	creates   Creates
	ran       [2]Scope // the largest amounts of pods that ran since ranSince, and in the ranPeriod before
	ranSince  time.Time

	refusedPods   map[types.UID]refusedPod // the refused pods of owners that count failures
	used, running Size                     // the total size of all pods, and of the pods that have started
	peak, recent  Size                     // as in Pacing
	lastStart     time.Time                // when a pod was last seen to start, by the caller's clock

	state        State
	since, until time.Time
	rests        int       // how many times the pool has become Refusing since it was last Open, at most 30
	code, text   string    // as Code and Message in Status
	newest       time.Time // the latest binding time of all pods that have been seen
	accepted     time.Time // the latest binding time of all pods that have started
	closed       time.Time // the value of newest when the pool last became Refusing
	probed       time.Time // the value of newest when the pool last became HalfOpen
	shut         time.Time // when the pool last became Refusing, by the caller's clock
	expired      bool      // as in Status
}

// known is a pod on the pool's nodes.
type known struct {
	Pod
	cause    refusal.Cause // the cause of the pod's last counted refusal; empty if there is none
	late     bool          // whether the pod was counted as late
	seen     time.Time     // when the pod was first seen, by the caller's clock
	refused  time.Time     // when the pod was first seen as refused, by the caller's clock; zero if it is not refused
	slowness int           // Lateness.Times of the pod's owner when the pod was first seen
	within   time.Duration // how long the pod may take to start before it is late; 0 if it is never late
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
		slow: map[types.UID]Lateness{}, evictions: map[types.UID]evictions{}, templates: map[string]Template{}, closings: map[Scope]Closing{}, refusedPods: map[types.UID]refusedPod{},
	}
}

// Change is the result of See for one pod.
type Change struct {
	// StatusChanged is set if the Status may have changed.
	StatusChanged bool
	// Refused is the pod's refusal if the pod was not refused before; nil otherwise.
	Refused *refusal.Refusal
	// Ineligible is set if the pod's template became ineligible. If the pod has no controller, Ineligible is set if the
	// pod itself became ineligible.
	Ineligible bool
}

// See processes the state, at the time now, of a pod on the pool's nodes.
func (b *Breaker) See(pod Pod, now time.Time) Change {
	k, seen := b.pods[pod.UID]
	if !seen {
		k = &known{seen: now, slowness: b.slow[pod.Owner].Times}
		if !pod.Foreign {
			k.within = refusal.TimeToStart(b.rules.StartWithin, k.slowness)
		}
		if b.counted[pod.UID] {
			delete(b.counted, pod.UID)
			k.late = pod.Refusal == nil
			if pod.Refusal != nil {
				k.cause = pod.Refusal.Cause
			}
			b.countRefused(&pod)
		}
		b.pods[pod.UID] = k
		b.created(Create{pod.UID, pod.Namespace, pod.Bound}, now)
	}
	change := Change{StatusChanged: !seen || pod.Ending != k.Ending}
	if seen { // users can change the annotation later, and a started pod stays started while its container group is repaired
		pod.Bound = k.Bound
		pod.Started = pod.Started || k.Started && pod.Refusal == nil
		b.measure(&k.Pod, -1)
	}
	started := pod.Started && !k.Started
	b.measure(&pod, 1)
	k.Pod = pod
	if pod.Refusal == nil {
		k.refused = time.Time{}
	} else if k.refused.IsZero() {
		k.refused = now
	}
	if b.newest = latest(b.newest, pod.Bound); k.mayStart() {
		b.waiting[pod.UID] = k
	} else {
		delete(b.waiting, pod.UID)
	}
	switch {
	case started:
		change.StatusChanged = true
		b.openFor(&pod)
		delete(b.failures, pod.UID)
		delete(b.refusedPods, pod.UID)
		delete(b.evictions, pod.Owner)
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

// worse reports whether a refusal with this cause adds information to the pod's earlier refusal. before is the cause of
// the earlier refusal, or empty if there was none. If the virtual kubelet tries again, the provider may refuse the pod
// for another cause.
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

// refused processes a refusal. For a pod error, it returns true if the pod's template was eligible until now. For any
// other refusal, it returns false.
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

// failed counts a refusal with the cause PoolError or Unknown. After a PoolError, it resets peak and recent to the size
// of the pods that run now. If the provider has no capacity for a pod that is larger than all that ran, failed closes
// the pool only for pods of this size.
func (b *Breaker) failed(p *Pod, at time.Time) {
	if p.Foreign && p.Refusal.Cause == refusal.Unknown {
		return
	}
	f := Failure{UID: p.UID, Namespace: p.Namespace, Cause: p.Refusal.Cause, Code: p.Refusal.Code, Message: p.Refusal.Message, Bound: p.Bound, At: at}
	if p.Refusal.OfCapacity() && b.isLargest(p) {
		if p.Bound.After(b.closings[p.Billed].Newest) { // the pause doubles only for pods that were bound after the last closing
			b.closeFor(p.Billed, &f, at)
		}
		return
	}
	b.fail(f)
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
		b.measure(&k.Pod, -1)
	}
	delete(b.pods, uid)
	delete(b.waiting, uid)
	delete(b.counted, uid)
	return seen
}

// testAlone is how long a test pod keeps others from testing. maxTests bounds the test pods at a time.
const (
	testAlone = 3 * time.Minute
	maxTests  = 3
)

// Test is a pod that tests the provider of a half-open pool, and has not started.
type Test struct {
	Namespace string `json:"namespace"`
	// Until is when a pod of another namespace may test the provider, too.
	Until time.Time `json:"until"`
}

// Tests are the pods that test the provider at the same time.
type Tests []Test

// Busy reports whether a further pod of the namespace must not test the provider at the time now. A test pod that does
// not start may have a cause of its own, so that after a while the next test is of another namespace. until is when
// this may end without an event; zero if it may not.
func (t Tests) Busy(namespace string, now time.Time) (until time.Time, busy bool) {
	for i := range t {
		if t[i].Namespace == namespace {
			return time.Time{}, true
		}
		until = latest(until, t[i].Until)
	}
	if len(t) >= maxTests {
		return time.Time{}, true
	}
	return until, now.Before(until)
}

// Tests returns the pods of the scope that have not started at the time now, but are expected to start. It leaves out
// pods that were bound before the pool closed for the scope, and pods of other schedulers, which passed no gate. placed
// has the namespaces of assumed pods of the scope, by UID, whose binding the informer may not have delivered yet.
func (b *Breaker) Tests(scope Scope, placed map[types.UID]string, now time.Time) Tests {
	var tests Tests
	closed := b.closed
	if scope != (Scope{}) {
		closed = b.closings[scope].Newest
	}
	for _, k := range b.waiting {
		if scope.Selects(k.scope()) && now.Before(k.startsUntil(b.rules.StartWithin)) && !k.Foreign && k.Bound.After(closed) {
			tests = append(tests, Test{k.Namespace, k.seen.Add(testAlone)})
		}
	}
	for uid, namespace := range placed {
		if _, known := b.pods[uid]; !known {
			tests = append(tests, Test{namespace, now.Add(testAlone)})
		}
	}
	// A map has no order, but the published status must not change without an event.
	slices.SortFunc(tests, func(x, y Test) int { return cmp.Or(x.Until.Compare(y.Until), cmp.Compare(x.Namespace, y.Namespace)) })
	seen := map[string]bool{} // the pods of one namespace keep no more than one place
	tests = slices.DeleteFunc(tests, func(t Test) bool {
		again := seen[t.Namespace]
		seen[t.Namespace] = true
		return again
	})
	return tests[:min(len(tests), maxTests)]
}

// startsUntil returns the time until which the pod counts as starting. If startWithin is 0, defaultStart applies.
func (k *known) startsUntil(startWithin time.Duration) time.Time {
	return k.Bound.Add(cmp.Or(startWithin, defaultStart))
}
