package poolpriority

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/capacity/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/capacity/static"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

// settleTime is how long the gatekeeper waits for more changes before it looks: nodes come and go in crowds.
const settleTime = 50 * time.Millisecond

// reasonStarting is the reason of every pool until the informers have synced.
var reasonStarting = capacity.Reason{Code: "Starting", Sentence: "the scheduler is starting"}

// gatekeeper watches what the gate goes by, keeps the view of it, and wakes the pods that a change lets in.
type gatekeeper struct {
	rule           gate.Rule
	provisionGrace time.Duration
	handle         fwk.Handle
	clock          clock.WithTicker
	view           atomic.Pointer[capacity.View]
	held           *held
	nodes          corelisters.NodeLister
	pods           corelisters.PodLister
	tracker        *clusterautoscaler.Tracker
	sources        []capacity.Source // by the regular pool's index
	status         func() *v1.ConfigMap
	changed        chan struct{} // a node or the status changed
	earlier        chan struct{} // a pod was held that must be looked at before the timer is due
	warned         map[string]bool
	problem        string // the last error in the status
	statusID       string // namespace/name of the status ConfigMap
}

func newGatekeeper(ctx context.Context, args *configv1.PoolPriorityArgs, pools pool.List, handle fwk.Handle, clock clock.WithTicker) (*gatekeeper, error) {
	c := &args.Capacity
	g := &gatekeeper{
		rule:           gate.Rule{Pools: pools, UnknownGrace: c.UnknownGrace.Duration, DeclineGrace: c.DeclineGrace.Duration},
		provisionGrace: c.ProvisionGrace.Duration,
		handle:         handle,
		clock:          clock,
		held:           newHeld(),
		changed:        make(chan struct{}, 1),
		earlier:        make(chan struct{}, 1),
		warned:         map[string]bool{},
		statusID:       c.ClusterAutoscalerStatus,
		status:         func() *v1.ConfigMap { return nil },
		tracker: clusterautoscaler.NewTracker(clusterautoscaler.Graces{
			StaleAfter: c.StaleAfter.Duration, Provision: c.ProvisionGrace.Duration, Backoff: c.BackoffGrace.Duration}),
	}
	starting := &capacity.View{Pools: make([]capacity.Pool, pools.Len())}
	watchStatus := false
	for i := range pools.Regular() {
		p := &pools.At(i).Pool
		switch {
		case p.ClusterAutoscaler != nil:
			g.sources = append(g.sources, clusterautoscaler.Source{Tracker: g.tracker, Groups: clusterautoscaler.GroupsOf(p)})
			watchStatus = true
		case p.Static != nil:
			g.sources = append(g.sources, static.MaxNodes(p.Static.MaxNodes))
		default:
			g.sources = append(g.sources, static.Fixed{})
		}
		starting.Pools[i].Verdict = capacity.Verdict{State: capacity.Unknown, Reason: reasonStarting, Since: clock.Now()}
	}
	g.view.Store(starting)

	synced, err := g.watchNodesAndPods()
	if err != nil {
		return nil, err
	}
	if watchStatus {
		if err := g.watchStatus(ctx); err != nil {
			return nil, err
		}
	}
	go g.run(ctx, synced)
	return g, nil
}

// watchNodesAndPods uses the scheduler's own informers.
func (g *gatekeeper) watchNodesAndPods() ([]cache.InformerSynced, error) {
	factory := g.handle.SharedInformerFactory().Core().V1()
	g.nodes, g.pods = factory.Nodes().Lister(), factory.Pods().Lister()
	nodes, err := factory.Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { poke(g.changed) },
		DeleteFunc: func(any) { poke(g.changed) },
		UpdateFunc: func(oldObj, newObj any) {
			if nodeKindChanged(oldObj.(*v1.Node), newObj.(*v1.Node)) {
				poke(g.changed)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	pods, err := factory.Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(oldObj, newObj any) {
			// An informer may merge the deletion of a pod with the creation of another of the same name.
			if oldPod := oldObj.(*v1.Pod); oldPod.UID != newObj.(*v1.Pod).UID {
				g.held.remove(oldPod.UID)
			}
			g.held.update(newObj.(*v1.Pod))
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				g.held.remove(pod.UID)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	return []cache.InformerSynced{nodes.HasSynced, pods.HasSynced}, nil
}

// nodeKindChanged reports whether the node changed in what capacity is judged by: heartbeats are not.
func nodeKindChanged(oldNode, newNode *v1.Node) bool {
	return capacity.IsStarting(oldNode) != capacity.IsStarting(newNode) || !maps.Equal(oldNode.Labels, newNode.Labels) ||
		!slices.EqualFunc(oldNode.Spec.Taints, newNode.Spec.Taints, func(a, b v1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }) ||
		!reflect.DeepEqual(oldNode.Status.Allocatable, newNode.Status.Allocatable)
}

// watchStatus watches the one ConfigMap and no other. That it cannot be read never stops anything: it is missing then.
func (g *gatekeeper) watchStatus(ctx context.Context) error {
	namespace, name, _ := strings.Cut(g.statusID, "/")
	factory := informers.NewSharedInformerFactoryWithOptions(g.handle.ClientSet(), 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
	configMaps := factory.Core().V1().ConfigMaps()
	if _, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { poke(g.changed) },
		UpdateFunc: func(any, any) { poke(g.changed) },
		DeleteFunc: func(any) { poke(g.changed) },
	}); err != nil {
		return fmt.Errorf("watching ConfigMap %s: %w", g.statusID, err)
	}
	lister := configMaps.Lister().ConfigMaps(namespace)
	g.status = func() *v1.ConfigMap {
		cm, err := lister.Get(name)
		if err != nil {
			return nil // a lister fails in no other way than "not found"
		}
		return cm
	}
	factory.Start(ctx.Done())
	return nil
}

// run rebuilds the view when something changed or time is up, and wakes pods.
func (g *gatekeeper) run(ctx context.Context, synced []cache.InformerSynced) {
	// Before that, the scheduler has not set what Activate needs.
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	g.rebuild(ctx)
	// Pods that were tried before that were told that the scheduler is starting.
	if early := g.held.all(); len(early) > 0 {
		g.handle.Activate(klog.FromContext(ctx), early)
	}
	timer := g.clock.NewTimer(0)
	defer func() { timer.Stop() }()
	var next time.Time
	for {
		onlyNew := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			g.rebuild(ctx)
		case <-g.changed:
			g.clock.Sleep(settleTime)
			select {
			case <-g.changed:
			default:
			}
			g.rebuild(ctx)
		case <-g.earlier:
			onlyNew = true
		}
		due := g.reconsider(ctx, onlyNew)
		if onlyNew {
			due = capacity.Earliest(due, next)
		}
		next = due
		timer.Stop()
		if !next.IsZero() {
			timer = g.clock.NewTimer(max(next.Sub(g.clock.Now()), time.Millisecond))
		}
	}
}

// rebuild judges all pools anew and swaps the view.
func (g *gatekeeper) rebuild(ctx context.Context) {
	logger := klog.FromContext(ctx)
	now := g.clock.Now()
	g.observe(logger, now)
	byPool := g.nodesByPool()
	old := g.view.Load()
	view := &capacity.View{Pools: make([]capacity.Pool, len(old.Pools))}
	for i := range view.Pools {
		var until time.Time
		view.Pools[i].Shapes, until = capacity.Shapes(byPool[i], now)
		view.ShapesUntil = capacity.Earliest(view.ShapesUntil, until)
	}
	g.assign(logger, byPool)
	for i, source := range g.sources {
		j := source.Judge(byPool[i], now).WithStarting(byPool[i], g.provisionGrace, now)
		p := &view.Pools[i]
		*p = capacity.Pool{
			Verdict:    capacity.Verdict{State: j.State, Reason: j.Reason, Since: now, Until: j.Until},
			FreshSince: j.FreshSince,
			LastRise:   j.LastRise,
			Shapes:     p.Shapes,
			Unseen:     j.Unseen,
		}
		before := &old.Pools[i]
		if before.State == p.State {
			p.Since = before.Since
		}
		if before.State != p.State || before.Reason.Code != p.Reason.Code {
			logger.Info("The capacity of a pool changed", "pool", g.rule.Pools.At(i).Name,
				"state", p.State, "reason", p.Reason.Code, "sentence", p.Reason.Sentence, "detail", p.Reason.Detail)
		}
	}
	g.view.Store(view)
}

// observe hands the status to the tracker and logs what is wrong with it, once for each error.
func (g *gatekeeper) observe(logger klog.Logger, now time.Time) {
	problem := ""
	if err := g.tracker.Observe(g.status(), now); err != nil {
		problem = err.Error()
		if problem != g.problem {
			logger.Error(err, "The cluster autoscaler's status cannot be read; its pools count as Unknown", "configMap", g.statusID)
		}
	}
	g.problem = problem
}

// unlisted returns the nodes in no pool.
func (g *gatekeeper) unlisted() []*v1.Node {
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		return nil // a lister of everything does not fail
	}
	return slices.DeleteFunc(nodes, func(n *v1.Node) bool { return g.rule.Pools.Of(n.Labels) != pool.None })
}

func (g *gatekeeper) nodesByPool() [][]*v1.Node {
	byPool := make([][]*v1.Node, g.rule.Pools.Len())
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		return byPool // a lister of everything does not fail
	}
	for _, node := range nodes {
		if i := g.rule.Pools.Of(node.Labels); i != pool.None {
			byPool[i] = append(byPool[i], node)
		}
	}
	return byPool
}

// assign tells the tracker whose the autoscaler's node groups are, and logs once for each that no pool claims.
func (g *gatekeeper) assign(logger klog.Logger, byPool [][]*v1.Node) {
	var claims []clusterautoscaler.Groups
	for i, source := range g.sources {
		if s, ok := source.(clusterautoscaler.Source); ok {
			claims = append(claims, s.Groups.With(byPool[i]))
		}
	}
	g.tracker.Assign(claims, slices.Concat(append(byPool, g.unlisted())...))
	for _, name := range g.tracker.Names() {
		claimed := slices.ContainsFunc(claims, func(c clusterautoscaler.Groups) bool { return c.Claim(name) })
		if !claimed && !g.warned[name] {
			g.warned[name] = true
			logger.Info("A node group in the cluster autoscaler's status belongs to no pool", "nodeGroup", name, "configMap", g.statusID)
		}
	}
}

// decide answers for the pod by the current view and the number of pods in each burst pool (nil: budgets are not looked
// at).
func (g *gatekeeper) decide(pod *v1.Pod, burstPods []int) gate.Decision {
	request := gate.Request{Pod: pod, UnschedulableSince: g.held.since(pod), BurstPods: burstPods}
	return g.rule.Decide(request, g.view.Load(), g.clock.Now())
}

// isBurstNode reports whether the node that exists by the name is in a burst pool.
func (g *gatekeeper) isBurstNode(name string) bool {
	node, err := g.nodes.Get(name)
	if err != nil {
		return false
	}
	i := g.rule.Pools.Of(node.Labels)
	return i != pool.None && g.rule.Pools.At(i).IsBurst()
}

// hold remembers a pod that the gate held by the decision. A view that was swapped since is looked at at once, and so
// is a decision that changes before the timer is due: both in the gatekeeper's own loop.
func (g *gatekeeper) hold(logger klog.Logger, pod *v1.Pod, decision *gate.Decision) {
	for b := range decision.Burst {
		if v := &decision.Burst[b]; !v.Open {
			logger.V(3).Info("The pod is held back from a burst pool", "pod", klog.KObj(pod),
				"pool", g.rule.Pools.At(g.rule.Pools.Regular()+b).Name, "reason", v.Reason.Code, "detail", v.Reason.Detail)
		}
	}
	g.held.add(pod, decision, g.clock.Now())
	g.forgetIfGone(pod)
	poke(g.earlier)
}

// note remembers since when a pod that failed has been unschedulable: the condition does not say it of a pod that waited
// for scheduling gates before.
func (g *gatekeeper) note(pod *v1.Pod) {
	g.held.note(pod, g.clock.Now())
	g.forgetIfGone(pod)
}

// forgetIfGone forgets a pod that was deleted in mid-cycle: no event will say so again.
func (g *gatekeeper) forgetIfGone(pod *v1.Pod) {
	if current, err := g.pods.Pods(pod.Namespace).Get(pod.Name); err != nil || current.UID != pod.UID {
		g.held.remove(pod.UID)
	}
}

// reconsider wakes the held pods for which a burst pool has opened, and returns when to look again.
// With onlyNew, only pods that were held since the last time are looked at.
func (g *gatekeeper) reconsider(ctx context.Context, onlyNew bool) time.Time {
	logger := klog.FromContext(ctx)
	view, now := g.view.Load(), g.clock.Now()
	opened, next := g.held.reconsider(onlyNew, func(request gate.Request) gate.Decision { return g.rule.Decide(request, view, now) })
	if len(opened) > 0 {
		logger.V(2).Info("The gate opened for held pods", "pods", len(opened))
		g.handle.Activate(logger, opened)
	}
	return capacity.Earliest(next, view.Until())
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
