// Package providers watches whether the providers of burst pools start or refuse the pods on the pools' nodes, and evicts
// those that will not start.
package providers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// These are the reasons of events. An event eventRefused is written on a pod that was refused because of a pod
	// error. When a burst pool's provider begins to refuse pods, events EventRefuses are written on the pool's nodes.
	// When the provider accepts pods again, events eventAccepts are written.
	eventRefused, EventRefuses, eventAccepts = "BurstRefused", "BurstPoolRefuses", "BurstPoolAccepts"
	// maxEventNodes bounds how many nodes of a pool get the event EventRefuses or eventAccepts.
	maxEventNodes = 10
)

// Refusals counts the pods that providers refused.
var Refusals = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "burst_refusals_total",
	Help:      "Pods that a burst pool's provider refused, by the provider's error code. Unknown codes count as other.",
}, []string{"pool", "code"})

// Config has the dependencies of Providers.
type Config struct {
	Pools    pool.List
	Client   kubernetes.Interface
	Nodes    corelisters.NodeLister
	Pods     corelisters.PodLister
	Recorder events.EventRecorder
	Clock    clock.Clock
	// Rules returns the rules of a burst pool's circuit breaker. startWithin is the time within which the pool's pods
	// must start. If Rules is nil, breaker.NewRules is used.
	Rules    func(startWithin time.Duration) breaker.Rules
	Observed bool        // mode Observe: pods are not held
	Leading  func() bool // whether this scheduler is the leader; only the leader writes events and counts refusals
	Changed  func()      // called when a burst pool's status may have changed; Changed must not block
	// SchedulerName is the schedulerName of this scheduler's pods.
	SchedulerName string
}

// Providers watches whether the providers of the burst pools start or refuse the pods on the pools' nodes. Its methods
// are safe for concurrent use.
type Providers struct {
	config   Config
	warned   *lru.Cache // the burst pools and owners for which WarnOfDifferences wrote an event
	bursts   *lru.Cache // when the pods of an owner last burst ([]time.Time), by refusal.OwnerOf
	vanished *vanished

	mu       sync.Mutex
	trackers map[int]*breaker.Breaker // by the pool's index
	nodes    map[string]int           // by the name of a burst node: the index of its pool
}

// New returns Providers without nodes.
func New(config Config) *Providers {
	p := &Providers{config: config, warned: lru.New(maxWarned), bursts: lru.New(maxWarned), vanished: newVanished(config.Client.CoreV1()), trackers: map[int]*breaker.Breaker{}, nodes: map[string]int{}}
	rules := config.Rules
	if rules == nil {
		rules = breaker.NewRules
	}
	for i := range config.Pools.Burst() {
		r := rules(config.Pools.At(i).StartWithin())
		rates, _ := config.Pools.At(i).Creates()
		r.Creates = slices.Max(rates[:])
		p.trackers[i] = breaker.New(r)
	}
	return p
}

// Run runs until the context ends. It reads the last status of pods that left the informer before they had started. If
// evicts is not nil, and this scheduler leads, it also evicts lost pods with this client.
func (p *Providers) Run(ctx context.Context, evicts typedcorev1.PodsGetter) {
	if evicts != nil && !p.config.Observed {
		go wait.UntilWithContext(ctx, newLost(p, evicts).takeBack, lostInterval)
	}
	p.vanished.run(ctx, p.ended, p.Gone)
}

// Deleted processes a pod that left the informer, because the pod was deleted or has ended.
func (p *Providers) Deleted(pod *v1.Pod) {
	if !p.Follows(pod.Spec.NodeName) || !p.vanished.add(pod) {
		p.Gone(pod.UID)
	}
}

// See processes a pod that was added or changed.
func (p *Providers) See(pod *v1.Pod) {
	i, ok := p.poolOf(pod.Spec.NodeName)
	if !ok {
		return
	}
	of := p.podOf(i, pod) // without the lock, because the authors of pods choose how long it takes
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, ok := p.nodes[pod.Spec.NodeName]; !ok || now != i {
		return // Follow sees the pod, or has seen it
	}
	change := p.trackers[i].See(of, p.config.Clock.Now())
	p.countRefusal(i, pod, change)
	if change.StatusChanged {
		p.config.Changed()
	}
}

// podOf returns the breaker's input for a pod in the burst pool with index i.
func (p *Providers) podOf(i int, pod *v1.Pod) breaker.Pod {
	of := breaker.PodOf(pod, p.config.Clock.Now())
	onACI := p.config.Pools.At(i).OnACI()
	of.MilliCPU, of.Billed = aci.UseOf(pod, onACI).MilliCPU, breaker.ScopeOf(pod, onACI)
	of.Billed.Namespace, of.Foreign = "", pod.Spec.SchedulerName != p.config.SchedulerName
	return of
}

// Follows reports whether the node is in a burst pool.
func (p *Providers) Follows(node string) bool {
	_, ok := p.poolOf(node)
	return ok
}

// poolOf returns the index of the node's burst pool, and whether it has one.
func (p *Providers) poolOf(node string) (i int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok = p.nodes[node]
	return i, ok
}

// ended processes the last status of a pod that left the informer.
func (p *Providers) ended(pod *v1.Pod) {
	p.See(pod)
	p.Gone(pod.UID)
}

// Gone removes a pod that was deleted.
func (p *Providers) Gone(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tracker := range p.trackers {
		if tracker.Gone(uid) {
			p.config.Changed()
		}
	}
}

// countRefusal counts a pod's refusal. If the refusal makes the pod's template ineligible, countRefusal also writes an
// event. In mode Observe, the event states what would follow in mode Enforce. Only the leader counts refusals and
// writes events.
func (p *Providers) countRefusal(i int, pod *v1.Pod, change breaker.Change) {
	if !p.config.Leading() {
		return
	}
	if change.Refused != nil {
		Refusals.WithLabelValues(p.config.Pools.At(i).Name, refusal.Label(change.Refused.Code)).Inc()
	}
	if change.Ineligible {
		refused, _ := refusal.Of(pod)
		follows := "No other pod of this template may burst to this pool until the template changes or a retry is due"
		if p.config.Observed {
			follows = "With mode: Enforce, no other pod of this template could burst to this pool until the template changes or a retry is due"
		}
		p.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, eventRefused, "Bursting",
			"The provider of burst pool %s refused the pod because of the pod's template. %s. The provider reported %s: %s", p.config.Pools.At(i).Name, follows, refused.Code, refused.Message)
	}
}

// Follow sets the nodes of the burst pools. If these nodes have changed, Follow processes all pods on the nodes again.
func (p *Providers) Follow(byPool [][]*v1.Node) {
	nodes := map[string]int{}
	for i := range p.config.Pools.Burst() {
		for _, node := range byPool[i] {
			nodes[node.Name] = i
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if maps.Equal(nodes, p.nodes) {
		return
	}
	p.nodes = nodes
	// The pods are listed under the lock, so that a listed pod's deletion is processed after the listing.
	all, _ := p.config.Pods.List(labels.Everything()) // a lister does not fail
	seen, byUID := map[int][]breaker.Pod{}, map[types.UID]*v1.Pod{}
	for _, pod := range all {
		if i, ok := nodes[pod.Spec.NodeName]; ok {
			seen[i] = append(seen[i], p.podOf(i, pod))
			byUID[pod.UID] = pod
		}
	}
	for i, tracker := range p.trackers {
		tracker.SeeAll(seen[i], p.config.Clock.Now(), func(pod breaker.Pod, change breaker.Change) { p.countRefusal(i, byUID[pod.UID], change) })
	}
}

// Status returns the status of the burst pool with index i at the time now.
func (p *Providers) Status(i int, now time.Time) breaker.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Status(now)
}

// Tests returns the pods that test the provider of the burst pool with index i for the scope at the time now. placed has
// the namespaces of pods of the scope in the scheduling snapshot, by UID. The snapshot includes assumed pods.
func (p *Providers) Tests(i int, scope breaker.Scope, placed map[types.UID]string, now time.Time) breaker.Tests {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Tests(scope, placed, now)
}

// Creates returns the last creates in the burst pool with index i, as a new list. placed has the namespaces of pods in the
// scheduling snapshot, by UID, which count as created now. The snapshot includes assumed pods.
func (p *Providers) Creates(i int, placed map[types.UID]string, now time.Time) breaker.Creates {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Creates(placed, now)
}

// Pacing returns the pacing of the owner in the burst pool with index i at the time now. placed has the UIDs of the
// owner's pods in the scheduling snapshot. The snapshot includes assumed pods.
func (p *Providers) Pacing(i int, owner types.UID, placed map[types.UID]string, now time.Time) *breaker.Pacing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Pacing(owner, placed, now)
}

// recall processes failed pods, which the provider may have refused while no scheduler was running.
func (p *Providers) recall(pods []v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.config.Clock.Now()
	for k := range pods {
		if i, ok := p.nodes[pods[k].Spec.NodeName]; ok {
			p.trackers[i].Recall(p.podOf(i, &pods[k]), now)
		}
	}
}

// Transition logs each provider's state that differs between the views before and view. If a provider began or stopped
// refusing pods, Transition also writes events on the pool's nodes. Only the leader writes events.
func (p *Providers) Transition(logger klog.Logger, before, view *nodegroups.View, byPool [][]*v1.Node) {
	for i := range p.config.Pools.Burst() {
		old, is, name := &before.Pools[i].Provider, &view.Pools[i].Provider, p.config.Pools.At(i).Name
		if old.State == "" || old.State == is.State {
			continue // the old state is not known, or is the same
		}
		logger.Info("The state of a burst pool's provider changed", "pool", name, "state", is.State, "until", is.Until, "code", is.Code, "message", is.Message)
		if !p.config.Leading() {
			continue
		}
		kind, event, message := v1.EventTypeWarning, EventRefuses, Complaint(name, is)
		switch {
		case is.State == breaker.Open && is.Expired:
			kind, event = v1.EventTypeNormal, eventAccepts
			message = fmt.Sprintf("Burst pool %s is used again: its provider has refused no pod for a while, and no pod has tested the provider", name)
		case is.State == breaker.Open:
			kind, event, message = v1.EventTypeNormal, eventAccepts, fmt.Sprintf("The provider of burst pool %s accepts pods again", name)
		case old.State != breaker.Open:
			continue
		}
		nodes := slices.SortedFunc(slices.Values(byPool[i]), func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
		for _, node := range nodes[:min(len(nodes), maxEventNodes)] {
			p.config.Recorder.Eventf(node, nil, kind, event, "Bursting", "%s", message)
		}
	}
}

// Complaint returns the message about a burst pool whose provider refuses pods.
func Complaint(name string, is *breaker.Status) string {
	return fmt.Sprintf("burst pool %s: its provider has refused pods since %s: %s: %s", name, is.Since.UTC().Format(time.RFC3339), is.Code, is.Message)
}

// Remember writes the memories of all circuit breakers to m.
func (p *Providers) Remember(m *published.Memory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.BurstPools = map[string]breaker.Memory{}
	for i, tracker := range p.trackers {
		if memory := tracker.Memory(); !memory.IsZero() {
			m.BurstPools[p.config.Pools.At(i).Name] = memory
		}
	}
}

// Restore restores all circuit breakers from the last leader's state.
func (p *Providers) Restore(last *published.Status, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, tracker := range p.trackers {
		name := p.config.Pools.At(i).Name
		if memory, ok := last.Memory.BurstPools[name]; ok {
			tracker.Restore(memory, now)
		}
		if last.View != nil {
			tracker.RestoreCreates(last.View.Creates(name), now)
		}
	}
}
