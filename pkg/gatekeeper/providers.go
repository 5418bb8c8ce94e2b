package gatekeeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// eventRefused is the reason of the event on a pod that was refused for what it is, eventRefuses and eventAccepts those on a burst pool's
	// nodes when it begins to refuse pods and when it takes them again.
	eventRefused, eventRefuses, eventAccepts = "BurstRefused", "BurstPoolRefuses", "BurstPoolAccepts"
	// maxToldNodes is on how many nodes of a pool that is told.
	maxToldNodes = 10
)

// providers follow what the providers behind the burst pools make of the pods on their nodes.
type providers struct {
	pools    pool.List
	pods     corelisters.PodLister
	recorder events.EventRecorder
	observed bool // gates are only observed
	now      func() time.Time
	leading  func() bool
	changed  func() // a judgement may have

	mu       sync.Mutex
	trackers map[int]*refusal.Tracker // by the pool's index
	nodes    map[string]int           // the index of the pool that a burst node is in
}

func newProviders(config *Config, leading func() bool, changed func()) *providers {
	p := &providers{
		pools: config.Pools, pods: config.Informers.Core().V1().Pods().Lister(), recorder: config.Recorder, now: config.Clock.Now,
		observed: config.Args.Mode == configv1.ModeObserve,
		leading:  leading, changed: changed, trackers: map[int]*refusal.Tracker{}, nodes: map[string]int{},
	}
	rules := config.Refusals
	if rules == nil {
		rules = refusal.NewRules
	}
	for i := range config.Pools.Burst() {
		p.trackers[i] = refusal.NewTracker(rules(config.Pools.At(i).StartWithin()))
	}
	return p
}

// see takes in a pod that was added or that changed.
func (p *providers) see(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.nodes[pod.Spec.NodeName]
	if !ok {
		return
	}
	news := p.trackers[i].See(p.podOf(i, pod), p.now())
	p.tell(i, pod, news)
	if news.Changed {
		p.changed()
	}
}

// podOf is what is looked at of the pod in the burst pool with index i.
func (p *providers) podOf(i int, pod *v1.Pod) refusal.Pod {
	of := refusal.PodOf(pod)
	of.MilliCPU = aci.UseOf(pod, p.pools.At(i).OnACI()).MilliCPU
	return of
}

// follows reports whether the node is a burst pool's.
func (p *providers) follows(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.nodes[node]
	return ok
}

// ended takes in what became of a pod that the informer has lost sight of.
func (p *providers) ended(pod *v1.Pod) {
	p.see(pod)
	p.gone(pod.UID)
}

// gone takes in that a pod was deleted.
func (p *providers) gone(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tracker := range p.trackers {
		if tracker.Gone(uid) {
			p.changed()
		}
	}
}

// tell counts a pod's refusal, and tells by an event that its template is ineligible from now on, or would be.
func (p *providers) tell(i int, pod *v1.Pod, news refusal.News) {
	if !p.leading() {
		return
	}
	if news.Refused != nil {
		burstRefusals.WithLabelValues(p.pools.At(i).Name, refusal.Label(news.Refused.Code)).Inc()
	}
	if news.Ineligible {
		refused, _ := refusal.Of(pod)
		follows := "no other pod of its template is sent there until it changes or is tried again"
		if p.observed {
			follows = "but for mode Observe, no other pod of its template would be sent there until it changes or is tried again"
		}
		p.recorder.Eventf(pod, nil, v1.EventTypeWarning, eventRefused, "Bursting", "%s", truncate(fmt.Sprintf(
			"The provider of burst pool %s refuses the pod for what it is, and %s: %s: %s", p.pools.At(i).Name, follows, refused.Code, refused.Message)))
	}
}

// follow takes in which nodes the pools have. If those of the burst pools are others than before, it looks at all pods.
func (p *providers) follow(byPool [][]*v1.Node) {
	nodes := map[string]int{}
	for i := range p.pools.Burst() {
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
	// Under the lock: the end of a pod that is listed is heard of later.
	all, _ := p.pods.List(labels.Everything()) // does not fail
	seen, byUID := map[int][]refusal.Pod{}, map[types.UID]*v1.Pod{}
	for _, pod := range all {
		if i, ok := nodes[pod.Spec.NodeName]; ok {
			seen[i] = append(seen[i], p.podOf(i, pod))
			byUID[pod.UID] = pod
		}
	}
	for i, tracker := range p.trackers {
		tracker.SeeAll(seen[i], p.now(), func(pod refusal.Pod, news refusal.News) { p.tell(i, byUID[pod.UID], news) })
	}
}

// judge says how the burst pool with index i is at the time now.
func (p *providers) judge(i int, now time.Time) refusal.Judgement {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Judge(now)
}

// starting is how many pods of the burst pool with index i may still start at the time now, among them those placed that are not known to be bound.
func (p *providers) starting(i int, placed []types.UID, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Starting(placed, now)
}

// pacing returns the pacing of the owner in the burst pool with index i at the time now. Its pods placed, by their UIDs, may not be bound yet.
func (p *providers) pacing(i int, owner types.UID, placed []types.UID, now time.Time) *refusal.Pacing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Pacing(owner, placed, now)
}

// recall takes in pods that have ended and that may have been refused while nobody looked.
func (p *providers) recall(pods []v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for k := range pods {
		if i, ok := p.nodes[pods[k].Spec.NodeName]; ok {
			p.trackers[i].Recall(p.podOf(i, &pods[k]), now)
		}
	}
}

// transition tells of burst pools that began to refuse pods, or take them again, since the view before.
func (p *providers) transition(logger klog.Logger, before, view *nodegroups.View, byPool [][]*v1.Node) {
	for i := range p.pools.Burst() {
		old, is, name := &before.Pools[i].Provider, &view.Pools[i].Provider, p.pools.At(i).Name
		if old.State == "" || old.State == is.State {
			continue // it is not known what was told
		}
		logger.Info("What the provider of a burst pool makes of pods changed", "pool", name, "state", is.State, "until", is.Until, "code", is.Code, "message", is.Message)
		if !p.leading() {
			continue
		}
		kind, event, message := v1.EventTypeWarning, eventRefuses, complaint(name, is)
		switch {
		case is.State == refusal.Open && is.Lapsed:
			kind, event = v1.EventTypeNormal, eventAccepts
			message = fmt.Sprintf("The provider of burst pool %s has refused no pod for a while, and there was none to try it with: it counts as open", name)
		case is.State == refusal.Open:
			kind, event, message = v1.EventTypeNormal, eventAccepts, fmt.Sprintf("The provider of burst pool %s takes pods again", name)
		case old.State != refusal.Open:
			continue
		}
		nodes := slices.SortedFunc(slices.Values(byPool[i]), func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
		for _, node := range nodes[:min(len(nodes), maxToldNodes)] {
			p.recorder.Eventf(node, nil, kind, event, "Bursting", "%s", truncate(message))
		}
	}
}

// complaint says that the burst pool refuses pods.
func complaint(name string, is *refusal.Judgement) string {
	return fmt.Sprintf("burst pool %s: its provider has refused pods since %s: %s: %s", name, is.Since.UTC().Format(time.RFC3339), is.Code, is.Message)
}

// remember writes down what the trackers remember.
func (p *providers) remember(m *published.Memory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, tracker := range p.trackers {
		if memory := tracker.Memory(); !memory.IsZero() {
			if m.BurstPools == nil {
				m.BurstPools = map[string]refusal.Memory{}
			}
			m.BurstPools[p.pools.At(i).Name] = memory
		}
	}
}

// restore has the trackers start from what was remembered.
func (p *providers) restore(m *published.Memory, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, tracker := range p.trackers {
		if memory, ok := m.BurstPools[p.pools.At(i).Name]; ok {
			tracker.Restore(memory, now)
		}
	}
}
