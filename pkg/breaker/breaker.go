// Package breaker is the circuit breaker of a burst pool. By what becomes of the pods on the pool's nodes it decides whether more may be sent there.
// The published states are named by the provider: Open is a closed circuit, Refusing an open one, and Probing a half-open one.
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

// State says whether a burst pool's provider takes pods.
type State string

const (
	// Open means that it does, as far as is known.
	Open State = "Open"
	// Refusing means that it does not, and that no pod is sent to it for a while.
	Refusing State = "Refusing"
	// Probing means that it did not, and that one pod is sent to it to see.
	Probing State = "Probing"
)

// defaultStart is how long a pod that is not late, because none ever is, counts as starting.
const defaultStart = 15 * time.Minute

// Rules are what a Breaker goes by.
type Rules struct {
	// StartWithin is how long a pod may take from its binding to its start. The next pods of an owner whose pod was late have more (TimeToStart).
	// 0: no pod is ever late.
	StartWithin time.Duration
	// Alone is for how long a pod must have been refused for what the pool is to be enough by itself.
	Alone time.Duration
	// Evidence is for how long a failure counts, if no success comes before.
	Evidence time.Duration
	// FirstRest is for how long a pool rests that begins to refuse; it doubles with each probe that fails, up to MaxRest.
	FirstRest, MaxRest time.Duration
	// InFlight is how much later than the last pod that was seen when the pool closed a pod may have been bound by a decision from before.
	InFlight time.Duration
	// Template is for how long a template is ineligible after a pod of it was last refused for what it is, and Curable if that may be over by
	// itself.
	Template, Curable time.Duration
	// Answer is how long the provider may take to refuse a pod: one that has neither started nor been refused by then counts as taken.
	Answer time.Duration
	// Trust is how long Pacing.Recent is trusted after a pod has started. Forget is how long a refused pod counts for its owner: a Job never
	// forgets, and by the hour one that runs for long would fail.
	Trust, Forget time.Duration
}

// ban is for how long a template is ineligible after a pod of it was refused.
func (r *Rules) ban(curable bool) time.Duration {
	if curable {
		return r.Curable
	}
	return r.Template
}

// NewRules returns the rules that hold for a pool whose pods must start within the time given.
func NewRules(startWithin time.Duration) Rules {
	return Rules{
		StartWithin: startWithin, Alone: 2 * time.Minute, Evidence: time.Hour, FirstRest: time.Minute, MaxRest: 10 * time.Minute,
		InFlight: 5 * time.Second, Template: 24 * time.Hour, Curable: 10 * time.Minute,
		Answer: 10 * time.Second, Trust: 10 * time.Minute, Forget: 24 * time.Hour,
	}
}

// Pod is what is looked at of a pod on a burst pool's nodes.
type Pod struct {
	UID       types.UID
	Namespace string
	// Owner is what controls the pod, or the pod itself.
	Owner types.UID
	// Template is alike.Template of the pod.
	Template string
	// CountsFailures is CountsFailures of the pod.
	CountsFailures bool
	// MilliCPU is what the provider bills for the pod, in thousandths of a CPU. PodOf does not say it.
	MilliCPU int64
	Bound    time.Time
	Started  bool
	// Ending says that it is being deleted or has ended, and will neither start nor be refused.
	Ending bool
	// Refusal is nil for a pod that was not refused.
	Refusal *refusal.Refusal
}

// PodOf returns what is looked at of the pod.
func PodOf(pod *corev1.Pod) Pod {
	p := Pod{
		UID: pod.UID, Namespace: pod.Namespace, Owner: cmp.Or(refusal.OwnerOf(pod), pod.UID), Template: alike.Template(pod), CountsFailures: CountsFailures(pod), Bound: refusal.BoundAt(pod),
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

// startLimit is for how long a pod of a pool with this startWithin is waited for; 0 means the default.
func startLimit(startWithin time.Duration) time.Duration {
	if startWithin == 0 {
		return defaultStart
	}
	return startWithin
}

// Judgement is what a Breaker says of a burst pool. It must not be changed.
type Judgement struct {
	State State `json:"state,omitempty"`
	// Since is when the pool was last known to come into or out of Open.
	Since time.Time `json:"since,omitzero"`
	// Lapsed says of a pool that is Open again that no pod has started there: none was refused for so long that it is not known any more.
	Lapsed bool `json:"lapsed,omitempty"`
	// Until is when a pool that is Refusing is probed.
	Until time.Time `json:"until,omitzero"`
	// Code and Message are what the provider said, and Failed is how many pods it refused or did not start since it last started one.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Failed  int    `json:"failed,omitempty"`
	// Starting is how many pods on the pool's nodes may still start.
	Starting int `json:"starting,omitempty"`
	// Templates are those of which the provider has refused pods for what they are, by alike.Template.
	Templates map[string]Template `json:"templates,omitempty"`
	// Pacing is that of all owners; nil: there is none.
	Pacing *Pacing `json:"pacing,omitempty"`
	// Next is when the judgement changes by itself; zero if it does not.
	Next time.Time `json:"next,omitzero"`
}

// Template is what the provider said of a template's pods.
type Template struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// At is when a pod of it was last refused.
	At time.Time `json:"at"`
	// Curable says that it may be eligible again without a change.
	Curable bool `json:"curable,omitempty"`
	// Until is when it is tried again.
	Until time.Time `json:"until,omitzero"`
}

// Breaker judges one burst pool by the pods on its nodes. It has no clock: it is told what it sees and when. Its methods must not be called by
// several goroutines at once.
//
// Times of binding are the leader's or the API server's, and only compared with one another: a failure counts for nothing once a pod has started that was
// bound later, and a pool that is closed opens when a pod has started that was bound after the last one before it closed.
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
	probed       time.Time // newest, when it was opened for a probe
	shut         time.Time // when it was closed last, by the clock
	lapsed       bool      // it is open because nothing was refused for a while, and not because a pod has started
}

// known is a pod on the pool's nodes.
type known struct {
	Pod
	class    refusal.Class // of its refusal, as counted; empty if it was not refused
	late     bool          // it was counted as late
	seen     time.Time     // when it was first seen, by the clock
	slowness int           // its owner's, then
	within   time.Duration // it is late if it takes longer to start; 0: never
}

// Failure is a pod that was refused, or is late, for what may be the pool.
type Failure struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	// Class is OfPool, Unknown, or empty for a pod that is late.
	Class   refusal.Class `json:"class,omitempty"`
	Code    string        `json:"code,omitempty"`
	Message string        `json:"message,omitempty"`
	Bound   time.Time     `json:"bound"`
	// At is when it failed.
	At time.Time `json:"at"`
}

// Lateness is how often in a row pods of an owner were late.
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

// News says what a Breaker learnt of a pod.
type News struct {
	// Changed says that the judgement may have.
	Changed bool
	// Refused is the refusal, if it is the pod's first.
	Refused *refusal.Refusal
	// Ineligible says that the pod's template was found to be, or the pod itself if nothing controls it.
	Ineligible bool
}

// See takes in how a pod on the pool's nodes is at the time now.
func (b *Breaker) See(pod Pod, now time.Time) News {
	k, seen := b.pods[pod.UID]
	if !seen {
		k = &known{seen: now, slowness: b.slow[pod.Owner].Times}
		k.within = refusal.TimeToStart(b.rules.StartWithin, k.slowness)
		if b.counted[pod.UID] {
			delete(b.counted, pod.UID)
			k.late = pod.Refusal == nil
			if pod.Refusal != nil {
				k.class = pod.Refusal.Class
			}
			b.countRefused(&pod)
		}
		b.pods[pod.UID] = k
	}
	news := News{Changed: !seen || pod.Ending != k.Ending}
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
		news.Changed = true
		delete(b.failures, pod.UID)
		delete(b.refusedPods, pod.UID)
		b.accepted = latest(b.accepted, pod.Bound)
		if seen {
			b.startedAt(now)
		}
		if now.Before(pod.Bound.Add(b.rules.StartWithin)) {
			delete(b.slow, pod.Owner)
		}
	case pod.Refusal != nil && worse(k.class, pod.Refusal.Class):
		news.Changed = true
		if k.class == "" {
			news.Refused = pod.Refusal
			b.countRefused(&k.Pod)
		}
		k.class = pod.Refusal.Class
		news.Ineligible = b.refused(k, now)
	}
	return news
}

// worse reports whether a refusal of the class, after one of the class before (empty if there was none), says something new: a kubelet that
// tries again may be told something else.
func worse(before, class refusal.Class) bool {
	switch before {
	case "":
		return true
	case refusal.OfNeither:
		return class != refusal.OfNeither
	case refusal.Unknown:
		return class == refusal.OfPool || class == refusal.OfPod
	}
	return false
}

// refused takes in why a pod was refused, and reports whether it is the pod's own fault and was not known to be.
func (b *Breaker) refused(k *known, now time.Time) bool {
	switch k.Refusal.Class {
	case refusal.OfPod:
		delete(b.failures, k.UID)
		if k.Template == "" {
			return true
		}
		_, old := b.templates[k.Template]
		b.ban(&k.Pod, now)
		return !old
	case refusal.OfPool, refusal.Unknown:
		b.failed(&k.Pod, now)
	}
	return false
}

// ban has the pod's template be ineligible, as of the time given.
func (b *Breaker) ban(p *Pod, at time.Time) {
	r := p.Refusal
	b.templates = maps.Clone(b.templates) // judgements have the one before
	b.templates[p.Template] = Template{Code: r.Code, Message: r.Message, Curable: r.Curable, At: at, Until: at.Add(b.rules.ban(r.Curable))}
	trim(b.templates, maxTemplates, func(key string, x Template) (time.Time, string) { return x.At, key })
}

// failed takes in that a pod was refused at the time given for what may be the pool. If it surely is, no more is known to run at once than what does.
func (b *Breaker) failed(p *Pod, at time.Time) {
	b.fail(Failure{UID: p.UID, Namespace: p.Namespace, Class: p.Refusal.Class, Code: p.Refusal.Code, Message: p.Refusal.Message, Bound: p.Bound, At: at})
	if p.Refusal.Class == refusal.OfPool {
		b.peak, b.recent = b.running, b.running
	}
}

func (b *Breaker) fail(f Failure) {
	b.failures[f.UID] = f
	trim(b.failures, maxFailures, func(uid types.UID, x Failure) (time.Time, string) { return x.At, string(uid) })
}

// Gone takes in that a pod is not on the pool's nodes any more, and reports whether the judgement may have changed.
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

// Starting is how many pods may still start at the time now: those on the pool's nodes that were not bound too long ago, and those of the pods placed
// (by their UIDs) that are not known yet, because the API server does not say yet that they are bound.
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

// startsUntil is until when the pod is waited for.
func (k *known) startsUntil(startWithin time.Duration) time.Time {
	return k.Bound.Add(startLimit(startWithin))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
