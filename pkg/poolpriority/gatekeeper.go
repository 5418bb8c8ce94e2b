package poolpriority

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/status"
)

// settleTime is how long the gatekeeper waits for more changes before it looks: nodes come and go in crowds. After a look it rests for
// restFactor times as long as that took, so that it takes a tenth of a CPU in a large cluster whose nodes change all the time, but never
// for longer than maxRest.
const (
	settleTime = 50 * time.Millisecond
	restFactor = 9
	maxRest    = 500 * time.Millisecond
)

const (
	// sourcesTimeout is how long the gatekeeper waits at its start for what the pools are judged by.
	sourcesTimeout = 10 * time.Second
	// heartbeat is how often the state is published while pods are held.
	heartbeat = time.Minute
	// maxUnschedulable is how many pods' clocks are published.
	maxUnschedulable = 5000
	// restoreLimit is how old a published state may be at least to tell since when a pool is in its state.
	restoreLimit = 15 * time.Minute
	// takeOverTimeout is how long a new leader tries to read what the last one published; it tries every takeOverRetry.
	takeOverTimeout, takeOverRetry = 30 * time.Second, time.Second
)

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
	volumes        volumes
	rollouts       *rollouts // nil: a rollout's pods are like others
	sources        *sources
	problems       *problems
	publisher      *publisher
	leading        atomic.Bool   // this scheduler schedules: another that is ready to take over does not
	takenOver      bool          // what the last leader published was taken over
	giveUp         time.Time     // when it is done without; zero until this scheduler leads
	changed        chan struct{} // a node or what the pools are judged by changed
	earlier        chan struct{} // a pod was held that must be looked at before the timer is due
}

func newGatekeeper(ctx context.Context, args *configv1.PoolPriorityArgs, pools pool.List, handle fwk.Handle, clock clock.WithTicker) (*gatekeeper, error) {
	c := &args.Capacity
	g := &gatekeeper{
		rule:           gate.Rule{Pools: pools, UnknownGrace: c.UnknownGrace.Duration, DeclineGrace: c.DeclineGrace.Duration},
		provisionGrace: c.ProvisionGrace.Duration,
		handle:         handle,
		clock:          clock,
		held:           newHeld(),
		volumes:        newVolumes(handle.SharedInformerFactory()),
		problems:       newProblems(handle, pools),
		publisher:      newPublisher(args.StatusConfigMap, handle.ClientSet()),
		changed:        make(chan struct{}, 1),
		earlier:        make(chan struct{}, 1),
	}
	starting := &capacity.View{Pools: make([]capacity.Pool, pools.Len())}
	for i := range pools.Regular() {
		// Not Unknown, which may count as full at once.
		starting.Pools[i] = capacity.Pool{Judgement: capacity.Judgement{State: capacity.CanGrow, Reason: reasonStarting}, Since: clock.Now()}
	}
	g.view.Store(starting)

	synced, err := g.watchNodesAndPods()
	if err != nil {
		return nil, err
	}
	if g.sources, err = newSources(ctx, args, pools, handle, g.changed); err != nil {
		return nil, err
	}
	if *args.ScaleIn.HoldSurge {
		if g.rollouts, err = newRollouts(ctx, handle, func(deployment types.UID) {
			if g.held.stirred(deployment) {
				poke(g.changed)
			}
		}); err != nil {
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
	claimChanged := func(obj any) {
		if claim := obj.(*v1.PersistentVolumeClaim); g.held.claims(claim.Namespace, claim.Name) {
			poke(g.changed)
		}
	}
	if _, err := factory.PersistentVolumeClaims().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: claimChanged, UpdateFunc: func(_, obj any) { claimChanged(obj) },
	}); err != nil {
		return nil, fmt.Errorf("watching persistent volume claims: %w", err)
	}
	return []cache.InformerSynced{nodes.HasSynced, pods.HasSynced}, nil
}

// nodeKindChanged reports whether the node changed in what capacity is judged by: heartbeats are not.
func nodeKindChanged(oldNode, newNode *v1.Node) bool {
	return capacity.IsStarting(oldNode) != capacity.IsStarting(newNode) || !maps.Equal(oldNode.Labels, newNode.Labels) ||
		!slices.EqualFunc(oldNode.Spec.Taints, newNode.Spec.Taints, func(a, b v1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }) ||
		!reflect.DeepEqual(oldNode.Status.Allocatable, newNode.Status.Allocatable)
}

// run rebuilds the view when something changed or time is up, and wakes pods.
func (g *gatekeeper) run(ctx context.Context, synced []cache.InformerSynced) {
	// Before that, the scheduler has not set what Activate needs.
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	g.waitForSources(ctx)
	g.rebuildFrom(ctx, g.restore(ctx))
	go g.publisher.run(ctx, g.clock)
	g.takeOver(ctx)
	// Pods that were tried before that were told that the scheduler is starting.
	if early := g.held.all(); len(early) > 0 {
		g.handle.Activate(klog.FromContext(ctx), early)
	}
	timer := g.clock.NewTimer(0)
	defer func() { timer.Stop() }()
	var next, reported, rested time.Time
	var took time.Duration // by the last look
	for {
		onlyNew := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		case <-g.changed:
			rest := rested.Add(min(restFactor*took, maxRest)).Sub(g.clock.Now())
			g.clock.Sleep(max(settleTime, rest))
			select {
			case <-g.changed:
			default:
			}
		case <-g.earlier:
			onlyNew = true
		}
		began := g.clock.Now()
		if !onlyNew {
			g.rebuild(ctx)
		}
		again := g.takeOver(ctx)
		due := capacity.Earliest(g.reconsider(ctx, onlyNew), again)
		if onlyNew {
			due = capacity.Earliest(due, next)
		}
		next = due
		if now := g.clock.Now(); !onlyNew || now.Sub(reported) >= time.Second {
			reported = now
			g.report(ctx)
		}
		if g.leading.Load() && g.held.count() > 0 {
			// The published state must not grow old while pods wait.
			next = capacity.Earliest(next, g.clock.Now().Add(heartbeat))
		}
		if !onlyNew {
			rested = g.clock.Now()
			took = rested.Sub(began)
		}
		timer.Stop()
		if !next.IsZero() {
			timer = g.clock.NewTimer(max(next.Sub(g.clock.Now()), time.Millisecond))
		}
	}
}

// waitForSources waits until it is known whether what the pools are judged by exists, and which Deployments there are. An API server
// that does not answer is not waited for: what cannot be read is Unknown.
func (g *gatekeeper) waitForSources(ctx context.Context) {
	for deadline := g.clock.Now().Add(sourcesTimeout); (!g.sources.settled() || !g.rollouts.synced()) && g.clock.Now().Before(deadline) && ctx.Err() == nil; {
		g.clock.Sleep(settleTime)
	}
	if !g.rollouts.synced() {
		klog.FromContext(ctx).Info("Deployments cannot be read: the new pods of rollouts burst like others until they can be; may the scheduler list and watch them?")
	}
}

// restore takes over what the last leader published, as far as it still tells of now, and returns the view to start from.
func (g *gatekeeper) restore(ctx context.Context) *capacity.View {
	logger, now := klog.FromContext(ctx), g.clock.Now()
	last, err := g.publisher.load(ctx)
	if err != nil {
		logger.Error(err, "The published state cannot be read; starting without what is missing", "configMap", g.publisher.id)
	}
	if last == nil {
		return g.view.Load()
	}
	logger.Info("Starting from the published state", "configMap", g.publisher.id, "written", last.Memory.Written)
	g.sources.restore(&last.Memory, now)
	view := *g.view.Load()
	if now.Sub(last.Memory.Written) > max(g.rule.UnknownGrace, restoreLimit) {
		return &view
	}
	view.Pools = slices.Clone(view.Pools)
	for _, published := range last.Pools {
		for i := range g.rule.Pools.Regular() {
			if g.rule.Pools.At(i).Name == published.Name {
				view.Pools[i].State, view.Pools[i].Since = published.State, published.Since
			}
		}
	}
	return &view
}

// takeOver takes over, once this scheduler leads, since when pods have been unschedulable by the last leader's word: one that
// was ready to take over has followed the pools by itself, and not the pods. Until that is done, nothing is published over it,
// and no pod counts as waiting for long. It returns when to try again.
func (g *gatekeeper) takeOver(ctx context.Context) time.Time {
	if g.takenOver || !g.leading.Load() {
		return time.Time{}
	}
	logger, now := klog.FromContext(ctx), g.clock.Now()
	if g.giveUp.IsZero() {
		g.giveUp = now.Add(takeOverTimeout)
	}
	last, err := g.publisher.load(ctx)
	if err != nil {
		logger.Error(err, "What the last leader published cannot be read", "configMap", g.publisher.id)
		if last == nil && now.Before(g.giveUp) {
			return now.Add(takeOverRetry)
		}
	}
	if last != nil {
		pods, err := g.pods.List(labels.Everything())
		if err != nil {
			pods = nil // a lister of everything does not fail
		}
		for _, pod := range pods {
			if since, ok := last.Memory.Unschedulable[pod.UID]; ok {
				g.held.restore(pod.UID, since)
			}
		}
	}
	g.held.trust(now)
	g.takenOver = true
	return time.Time{}
}

// rebuild judges all pools anew and swaps the view.
func (g *gatekeeper) rebuild(ctx context.Context) { g.rebuildFrom(ctx, g.view.Load()) }

// rebuildFrom does so with the view that was before.
func (g *gatekeeper) rebuildFrom(ctx context.Context, old *capacity.View) {
	logger := klog.FromContext(ctx)
	now := g.clock.Now()
	byPool, unlisted := g.groupNodes()
	g.sources.observe(logger, byPool, unlisted, now)
	view := &capacity.View{Pools: make([]capacity.Pool, len(old.Pools)), Built: now}
	for i := range view.Pools {
		var until time.Time
		view.Pools[i].Nodes = len(byPool[i])
		for _, node := range byPool[i] {
			if capacity.IsStarting(node) {
				view.Pools[i].Starting++
			}
		}
		view.Pools[i].Shapes, until = capacity.Shapes(byPool[i], now)
		view.ShapesUntil = capacity.Earliest(view.ShapesUntil, until)
	}
	for i, source := range g.sources.byPool {
		p := &view.Pools[i]
		p.Judgement = source.Judge(byPool[i], now).WithStarting(byPool[i], g.provisionGrace, now)
		p.Since = now
		before := &old.Pools[i]
		if before.State == p.State && !before.Since.After(now) {
			p.Since = before.Since
		}
		if before.State != p.State || before.Reason.Code != p.Reason.Code {
			logger.Info("The capacity of a pool changed", "pool", g.rule.Pools.At(i).Name,
				"state", p.State, "reason", p.Reason.Code, "sentence", p.Reason.Sentence, "detail", p.Reason.Detail)
		}
	}
	g.view.Store(view)
	g.problems.look(g.sources, view, byPool)
}

// groupNodes returns the nodes by the index of their pool, and those in none.
func (g *gatekeeper) groupNodes() (byPool [][]*v1.Node, unlisted []*v1.Node) {
	byPool = make([][]*v1.Node, g.rule.Pools.Len())
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		return byPool, nil // a lister of everything does not fail
	}
	for _, node := range nodes {
		if i := g.rule.Pools.Of(node.Labels); i != pool.None {
			byPool[i] = append(byPool[i], node)
		} else {
			unlisted = append(unlisted, node)
		}
	}
	return byPool, unlisted
}

// lead notes that this scheduler schedules. What is told to the world is told from then on.
func (g *gatekeeper) lead() {
	if !g.leading.Swap(true) {
		poke(g.changed)
	}
}

// report tells what there is to tell: problems, metrics and, while leading, events and the published state.
func (g *gatekeeper) report(ctx context.Context) {
	view, leading := g.view.Load(), g.leading.Load()
	logger := klog.FromContext(ctx)
	g.problems.report(logger, leading)
	g.problems.reportEmpty(logger, view)
	held := g.held.count()
	recordState(g.rule.Pools, view, held)
	if !g.takenOver {
		return
	}
	state := &status.Status{Problems: g.problems.messages()}
	for i := range g.rule.Pools.Regular() {
		p := &view.Pools[i]
		state.Pools = append(state.Pools, status.Pool{
			Name: g.rule.Pools.At(i).Name, State: p.State, Since: p.Since, Nodes: p.Nodes,
			Reason: p.Reason.Code, Message: p.Reason.Sentence, Detail: p.Reason.Detail,
		})
	}
	state.Memory = status.Memory{Unschedulable: g.held.unknownToAPI(maxUnschedulable)}
	g.sources.remember(&state.Memory, g.clock.Now())
	g.publisher.submit(state, held > 0)
}

// decide answers for the pod by the current view, the number of pods in each burst pool (nil: budgets are not looked at), the
// snapshot's nodes in each regular pool (nil: they are not looked at) and the room that the pod waits for.
func (g *gatekeeper) decide(pod *v1.Pod, burstPods []int, snapshot []gate.Nodes, room gate.Room) gate.Decision {
	request := g.request(pod)
	request.UnschedulableSince, request.BurstPods, request.Snapshot, request.Room = g.held.since(pod), burstPods, snapshot, room
	return g.rule.Decide(request, g.view.Load(), g.clock.Now())
}

// request is what of the pod and of what it refers to the gate goes by.
func (g *gatekeeper) request(pod *v1.Pod) gate.Request {
	return gate.Request{Pod: pod, AzureFiles: g.volumes.azureFiles(pod)}
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
func (g *gatekeeper) hold(logger klog.Logger, pod *v1.Pod, decision *gate.Decision, room *room) {
	for b := range decision.Burst {
		if v := &decision.Burst[b]; !v.Open {
			logger.V(3).Info("The pod is held back from a burst pool", "pod", klog.KObj(pod),
				"pool", g.rule.Pools.At(g.rule.Pools.Regular()+b).Name, "reason", v.Reason.Code, "detail", v.Reason.Detail)
		}
	}
	g.held.add(pod, decision, room, g.clock.Now())
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
	opened, next := g.held.reconsider(onlyNew, now, func(pod *v1.Pod, since time.Time, room gate.Room) gate.Decision {
		request := g.request(pod)
		request.UnschedulableSince, request.Room = since, room
		return g.rule.Decide(request, view, now)
	})
	if len(opened) > 0 {
		logger.V(2).Info("The gate opened for held pods", "pods", len(opened))
		wakeUps.Add(float64(len(opened)))
		g.handle.Activate(logger, opened)
	}
	next = capacity.Earliest(next, view.Until())
	if onlyNew {
		return capacity.Earliest(next, now.Add(retryUntold))
	}
	untold, due := g.held.untold(now)
	if len(untold) > 0 {
		logger.Info("The API does not say of held pods that they are unschedulable, trying them again", "pods", len(untold))
		g.handle.Activate(logger, untold)
	}
	return capacity.Earliest(next, due)
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
