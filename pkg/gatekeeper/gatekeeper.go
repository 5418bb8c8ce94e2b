// Package gatekeeper decides which pods may use burst pools. Each scheduling cycle calls the Gatekeeper for a decision.
// In parallel, the Gatekeeper's loop evaluates the pools, and requeues a pod when the gate opens for it. Sub-package
// held keeps the pods that the gate holds back, and admits them. Sub-package waiting keeps since when pods wait. Sub-package sources reads the pools' capacity and the operator's
// override of the gate. Sub-package providers tracks how the providers of burst pools treat pods. Sub-package usage
// sums the usage of nodes. Sub-package publishing publishes the state for tools, users and the next leader. None of
// these packages imports the scheduling framework.
package gatekeeper

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/alike"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/gatekeeper/providers"
	"poolpriority.dev/scheduler/pkg/gatekeeper/publishing"
	"poolpriority.dev/scheduler/pkg/gatekeeper/sources"
	"poolpriority.dev/scheduler/pkg/gatekeeper/usage"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
)

// Config has the dependencies of a Gatekeeper.
type Config struct {
	// Args are valid and have all defaults. Pools is the list of pools in Args. At least one pool is a burst pool.
	Args  *configv1.PoolPriorityArgs
	Pools pool.List

	Client kubernetes.Interface
	// Dynamic reads NodePools, NodeClaims and PodGroups. It may be nil if no pool names a NodePool and the API server
	// serves no PodGroups.
	Dynamic dynamic.Interface
	// Informers are the scheduler's own informers of nodes, pods, namespaces, ReplicaSets, PersistentVolumeClaims,
	// PersistentVolumes and StorageClasses. The caller starts the informers.
	Informers informers.SharedInformerFactory
	Recorder  events.EventRecorder
	// Activate requeues the pods in the map, whose keys are namespace/name. The Gatekeeper calls Activate only after
	// Informers have synced.
	Activate func(logger klog.Logger, pods map[string]*v1.Pod)
	Clock    clock.WithTicker
	// Identity is this scheduler's hostname, Version is its version, and SchedulerName is the schedulerName of its
	// pods. The Gatekeeper publishes all three.
	Identity, Version, SchedulerName string
	// Refusals returns the rules of a burst pool's circuit breaker. If Refusals is nil, the Gatekeeper uses
	// breaker.NewRules.
	Refusals func(startWithin time.Duration) breaker.Rules
	// Denied has the bindings that admission denied.
	Denied *denial.Bindings
}

// Gatekeeper watches the inputs of the gate. From these inputs, it builds the view of the pools. When a change opens
// the gate for held pods, the Gatekeeper requeues these pods. Its exported methods are safe for concurrent use.
type Gatekeeper struct {
	config Config
	rule   gate.Rule
	ended  func(now time.Time) bool // reports whether this scheduler's leadership has ended; nil if it cannot end
	synced []cache.InformerSynced

	// Scheduling cycles, event handlers of informers, the publisher and the loop use these fields.
	view      atomic.Pointer[nodegroups.View]
	held      *held.Pods
	declines  *gate.Declines
	rollouts  *held.Rollouts // nil if scaleIn.holdSurge is off
	providers *providers.Providers
	usage     *usage.Usage
	publisher *publishing.Publisher
	evicts    typedcorev1.PodsGetter // nil if no lost pods are evicted
	returns   atomic.Pointer[returns]
	tookOver  chan struct{} // closed when takeOver is done
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
	volumes   gate.Volumes
	spaces    corelisters.NamespaceLister
	policies  cache.SharedIndexInformer
	classes   resourcelisters.DeviceClassLister
	groups    atomic.Pointer[cache.Store] // the PodGroups; nil until the API server serves them
	leading   atomic.Bool                 // whether this scheduler is the leader; false in a standby

	full atomic.Pointer[full] // nil if the next sync is to look anew

	freedNodes freedNodes // nodes that may have free capacity for held pods
	warned     *lru.Cache // the UIDs of the owners for which warnOfDelay wrote an event

	// The loop makes a full sync when it receives from changed, and a sync with onlyNew when it receives from earlier.
	budgetFreed atomic.Bool   // set when a budget may have room for more pods; the next sync then checks budgets
	changed     chan struct{} // gets a value when an input of the view or of a decision changes
	earlier     chan struct{} // gets a value when budgetFreed is set, a pod is held, or a held pod changes during a sync
	batch       chan struct{} // gets a value when held pods may have been admitted, and when all pods of a batch have been tried, or are bound or have failed

	// Other goroutines may use override.Current, sources.Changes, sources.RefusedAt and
	// sources.NoScaleUp. Only the loop uses the rest of these fields.
	sources  *sources.Sources
	override *sources.Override
	loop     loop
}

// New returns a Gatekeeper, and starts to watch the capacity sources and the override. Until the loop first evaluates
// the pools, every regular pool keeps the gate closed with held.ReasonStarting.
func New(ctx context.Context, config Config) (*Gatekeeper, error) {
	config.Recorder, config.Denied = recorder{config.Recorder}, cmp.Or(config.Denied, denial.NewBindings())
	factory := config.Informers.Core().V1()
	g := &Gatekeeper{
		config:   config,
		rule:     gate.NewRule(config.Args, config.Pools),
		held:     held.New(),
		usage:    usage.New(config.SchedulerName),
		declines: gate.NewDeclines(),
		nodes:    factory.Nodes().Lister(),
		pods:     factory.Pods().Lister(),
		spaces:   factory.Namespaces().Lister(),
		volumes:  newVolumes(config.Informers),
		loop:     loop{problems: publishing.NewProblems(config.Recorder, config.Pools, *config.Args.GateTaint && config.Args.Mode == configv1.ModeEnforce), last: map[bool]synced{}},
		changed:  make(chan struct{}, 1),
		earlier:  make(chan struct{}, 1),
		batch:    make(chan struct{}, 1),
		tookOver: make(chan struct{}),
	}
	g.returns.Store(&returns{})
	g.warned = lru.New(maxWarned)
	g.freedNodes = freedNodes{since: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	starting := &nodegroups.View{Pools: make([]nodegroups.Pool, config.Pools.Len())}
	for i := range config.Pools.Regular() {
		// If unknownGrace is 0, an Unknown pool counts as full at once. The first state is therefore CanGrow.
		starting.Pools[i] = nodegroups.Pool{State: nodegroups.CanGrow, Reason: held.ReasonStarting, Since: config.Clock.Now(),
			Groups: []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow, Reason: held.ReasonStarting}}}}
	}
	g.view.Store(starting)
	g.providers = providers.New(providers.Config{
		Pools: config.Pools, Client: config.Client, Nodes: g.nodes, Pods: g.pods, Recorder: config.Recorder, Clock: config.Clock, Rules: config.Refusals, SchedulerName: config.SchedulerName,
		Observed: config.Args.Mode == configv1.ModeObserve, Leading: g.leading.Load, Changed: func() { poke(g.changed) },
	})

	var err error
	watched := &sources.Config{Args: config.Args, Pools: config.Pools, Client: config.Client, Dynamic: config.Dynamic, Recorder: config.Recorder,
		Now: config.Clock.Now, Draining: g.usage.Draining, Changed: func() { poke(g.changed) }}
	if g.sources, err = sources.New(ctx, watched); err != nil {
		return nil, err
	}
	g.override = sources.NewOverride(ctx, watched)
	g.publisher = publishing.New(publishing.Config{
		Args: config.Args, Pools: config.Pools, Client: config.Client.CoreV1(), Clock: config.Clock,
		Identity: config.Identity, Version: config.Version, SchedulerName: config.SchedulerName,
		Held: g.held, Declines: g.declines, Usage: g.usage, Sources: g.sources, Nodes: g.byPool, View: g.view.Load, Rule: g.overridden, Leads: g.leads, Synced: g.hasSynced,
	})
	if *config.Args.ScaleIn.HoldSurge {
		if g.rollouts, err = held.NewRollouts(ctx, config.Client, config.Informers); err != nil {
			return nil, err
		}
	}
	if err := g.watch(); err != nil {
		return nil, err
	}
	g.watchPolicies(ctx)
	return g, nil
}

// Lead records that this scheduler is the leader. Only the leader publishes the state and writes events.
func (g *Gatekeeper) Lead() {
	if !g.leading.Swap(true) {
		leader.Store(g.publisher)
		poke(g.changed)
	}
}

// EndsWith sets the function that reports whether this scheduler's leadership has ended. Callers must call EndsWith
// before Run and Lead.
func (g *Gatekeeper) EndsWith(ended func(now time.Time) bool) { g.ended = ended }

// PublishWith sets the client that reads and writes the published state. By default, this is Config.Client. Callers
// must call PublishWith before Run.
func (g *Gatekeeper) PublishWith(client typedcorev1.ConfigMapsGetter) {
	g.publisher.PublishWith(client)
}

// EvictWith sets the client that evicts lost pods. Without a client, no lost pod is evicted. Callers must call EvictWith
// before Run.
func (g *Gatekeeper) EvictWith(client typedcorev1.PodsGetter) { g.evicts = client }

// returns is the state of Return: the pauses of workloads, for the next leader, and the problem of the last round.
type returns struct {
	pauses  map[types.UID]returnplan.Pause
	problem string
}

// TookOver returns a channel that is closed once this scheduler leads and has read the last leader's published state.
func (g *Gatekeeper) TookOver() <-chan struct{} { return g.tookOver }

// Pauses returns the pauses of Return that are published.
func (g *Gatekeeper) Pauses() map[types.UID]returnplan.Pause { return g.returns.Load().pauses }

// Returned records the pauses of Return, and what kept its last round from finishing, or "". Both are published.
func (g *Gatekeeper) Returned(pauses map[types.UID]returnplan.Pause, problem string) {
	if old := g.returns.Swap(&returns{pauses, problem}); old.problem != problem || !maps.Equal(old.pauses, pauses) {
		poke(g.changed)
	}
}

// leads reports whether this scheduler is the leader and its leadership has not ended.
func (g *Gatekeeper) leads() bool {
	return g.leading.Load() && (g.ended == nil || !g.ended(g.config.Clock.Now()))
}

// hasSynced reports whether all informers have synced.
func (g *Gatekeeper) hasSynced() bool {
	return !slices.ContainsFunc(g.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// byPool returns the nodes of each pool, by the pool's index, and the unlisted nodes.
func (g *Gatekeeper) byPool() (byPool [][]*v1.Node, unlisted []*v1.Node) {
	nodes, _ := g.nodes.List(labels.Everything()) // does not fail
	return g.config.Pools.Group(nodes)
}

// uses returns the usage of each pool, and of each namespace in the burst pools, and the last creates there, by the pool's
// index.
func (g *Gatekeeper) uses() (uses []aci.Use, byNamespace []map[string]aci.Use, creates []breaker.Creates) {
	byPool, _ := g.byPool()
	uses, byNamespace = g.usage.Uses(g.config.Pools, byPool)
	creates = make([]breaker.Creates, len(uses))
	for i := range g.config.Pools.Burst() {
		creates[i] = g.providers.Creates(i, nil, g.config.Clock.Now())
	}
	return uses, byNamespace, creates
}

// Snapshot is the part of a scheduling cycle's snapshot that the gate needs. If Burst or Share is nil, the gate does
// not check these budgets. If Nodes is nil, the gate does not check whether the snapshot is stale. If NotStarted is
// nil, the gate uses the pod counts of the view.
type Snapshot struct {
	// Burst is the usage of each burst pool, by the pool's index.
	Burst []aci.Use
	// Share returns the usage of the namespace in the burst pool with index i.
	Share func(i int, namespace string) aci.Use
	// Nodes are the nodes of each regular pool, by the pool's index.
	Nodes []gate.Nodes
	// NotStarted calls visit for each pod that is on a node of the burst pool with index i and may still start
	// (refusal.MayStart). Assumed pods are included.
	NotStarted func(i int, visit func(*v1.Pod))
}

// Decide returns the gate's decision for the pod. The decision depends on the current view and the cycle's snapshot.
// wait may keep the gate closed until other pods have terminated.
func (g *Gatekeeper) Decide(pod *v1.Pod, snapshot Snapshot, wait gate.Wait) gate.Decision {
	now, view := g.config.Clock.Now(), g.view.Load()
	request := g.request(pod, "", g.held.Since(pod, now), now)
	request.Burst, request.Snapshot, request.Wait, request.Overflow = snapshot.Burst, snapshot.Nodes, wait, g.isFull(pod.UID, view)
	if snapshot.Share != nil {
		request.Share = func(i int) aci.Use { return snapshot.Share(i, pod.Namespace) }
	}
	if snapshot.NotStarted != nil {
		g.countNotStarted(&request, snapshot.NotStarted, now)
	}
	batch, alone := g.held.Tried(pod.UID, now)
	if alone {
		request.Declined = nil
	}
	if batch {
		poke(g.batch)
	}
	rule := g.overridden()
	return rule.Decide(request, view, now)
}

// countNotStarted sets the request's functions Tests, Creates and Pacing. They count the bound pods that the informer has
// delivered, and those that notStarted (Snapshot.NotStarted) visits, such as assumed pods.
func (g *Gatekeeper) countNotStarted(request *gate.Request, notStarted func(int, func(*v1.Pod)), now time.Time) {
	placed := func(i int, match func(*v1.Pod) bool) map[types.UID]string {
		namespaces := map[types.UID]string{}
		notStarted(i, func(pod *v1.Pod) {
			if match(pod) {
				namespaces[pod.UID] = pod.Namespace
			}
		})
		return namespaces
	}
	request.Tests = func(i int, scope breaker.Scope) breaker.Tests {
		onACI := g.config.Pools.At(i).OnACI()
		selects := func(pod *v1.Pod) bool {
			return pod.Spec.SchedulerName == g.config.SchedulerName && (scope == (breaker.Scope{}) || scope.Selects(breaker.ScopeOf(pod, onACI)))
		}
		return g.providers.Tests(i, scope, placed(i, selects), now)
	}
	request.Creates = func(i int) breaker.Creates {
		return g.providers.Creates(i, placed(i, func(*v1.Pod) bool { return true }), now)
	}
	owner := refusal.OwnerOf(request.Pod)
	request.Pacing = func(i int) *breaker.Pacing {
		return g.providers.Pacing(i, owner, placed(i, func(pod *v1.Pod) bool { return refusal.OwnerOf(pod) == owner && breaker.CountsFailures(pod) }), now)
	}
}

// SchedulerSignature returns a fragment of the pod's signature. kube-scheduler treats pods with equal signatures alike.
// The fragment covers the fields that decide whether the pod may burst, including fields of the pod's namespace and
// volumes. SignPod adds the requests, the tolerations and the node constraints.
func (g *Gatekeeper) SchedulerSignature(pod *v1.Pod) any {
	req := g.eligibility(pod)
	view := g.view.Load()
	signature := any([]any{alike.Scheduler(pod, req.AzureFiles, req.NotSelected, req.Tenant), req.Gang != ""})
	if g.isFull(pod.UID, view) {
		signature = []any{signature, "overflow"}
	}
	if g.config.Pools.LimitsNamespaces() {
		signature = []any{signature, pod.Namespace}
	}
	if breaker.CountsFailures(pod) {
		return []any{signature, refusal.OwnerOf(pod)}
	}
	for i := range g.config.Pools.Burst() {
		if len(view.Pools[i].Provider.Templates) > 0 {
			return []any{signature, alike.Template(pod)}
		}
	}
	return signature
}

// autoscalerKey returns the pod's alike.Autoscaler key. An autoscaler treats pods with the same key alike.
func (g *Gatekeeper) autoscalerKey(pod *v1.Pod) string {
	req := g.eligibility(pod)
	return req.AutoscalerKey()
}

// eligibility returns a request with only the fields that decide which burst pools the pod may use.
func (g *Gatekeeper) eligibility(pod *v1.Pod) gate.Request {
	return gate.Request{Pod: pod, Gang: g.gang(pod), AzureFiles: g.volumes.AzureFiles(pod), NotSelected: g.notSelected(pod), Tenant: g.tenant(pod)}
}

// request returns the gate's request for the pod at the time now. key is the pod's autoscaler key, or empty. Computing
// the key takes longer than most decisions. Therefore, an empty key is computed only if the decision needs it.
func (g *Gatekeeper) request(pod *v1.Pod, key string, since published.Wait, now time.Time) gate.Request {
	request := g.eligibility(pod)
	request.UnschedulableSince, request.NoRoomSince, request.IgnoredUntil, request.Inherited = since.Unschedulable, since.NoRoom, since.Ignored, since.Inherited
	request.LeftOut = g.config.Denied.LeftOut(pod.UID, g.config.Pools.Len(), true, now)
	request.RefusedAt, request.NoScaleUp = g.sources.RefusedAt, g.sources.NoScaleUp
	if g.declines.Known() {
		digest := sync.OnceValue(func() string {
			if key == "" {
				key = request.AutoscalerKey()
			}
			return gate.KeyDigest(key)
		})
		request.Declined = func(group string) time.Time { return g.declines.Declined(digest(), group, pod.UID, now) }
	}
	return request
}

// Rollout returns the rollout status of the pod. The status shows whether the pod is a new pod of a Deployment's
// rollout.
func (g *Gatekeeper) Rollout(pod *v1.Pod) held.RolloutStatus {
	return g.rollouts.Of(pod, g.config.Clock.Now())
}

// Failed records when the pod became unschedulable. If the pod had scheduling gates, the time in its condition
// PodScheduled is too early. wantsRoom is set if the cycle checked the nodes and the pod fits none of them. wantsRoom
// is not set if another step rejected the pod, for example because the pod's gang is incomplete or a PVC is missing. If
// the pod was assumed on a node, it has the node's name.
func (g *Gatekeeper) Failed(pod *v1.Pod, wantsRoom bool) {
	if g.waits(pod) { // else, the event handler has processed its end, or is about to
		g.held.Failed(pod, wantsRoom, g.config.Clock.Now())
	}
	if g.cycleEnded(pod.UID); !g.waits(pod) { // its cycle may have made it a trial
		g.forget(pod.UID)
	}
}

// Hold records that the decision holds the pod back. wait is what closed the gate, or nil. repelled is whether other pods
// keep the pod off nodes: what the pod finds out about node groups then holds for no other pod. Hold then makes the loop
// decide for the pod again at once. The view may have changed during the cycle, or the decision may change before the
// loop's timer is due.
func (g *Gatekeeper) Hold(logger klog.Logger, pod *v1.Pod, decision *gate.Decision, wait *gate.Wait, repelled bool) {
	for i := range g.config.Pools.Burst() {
		if v := &decision.Burst[i]; !v.Open {
			logger.V(3).Info("The pod is held back from a burst pool", "pod", klog.KObj(pod),
				"pool", g.config.Pools.At(i).Name, "reason", v.Reason.Code, "detail", v.Reason.Detail)
		}
	}
	if !g.waits(pod) {
		return
	}
	key := ""
	if !repelled {
		key = g.autoscalerKey(pod)
	} else {
		g.declines.Forget(pod.UID) // it must not be the trial of other pods
	}
	g.held.Add(pod, key, decision, wait, g.config.Clock.Now())
	// The informer may have stored a change of the pod before Add, when g.held did not have the pod. Such a change is
	// processed here. The informer's event handler processes later changes.
	switch current := g.current(pod); {
	case current == nil || !mayWait(current):
		g.forget(pod.UID)
	case g.held.Update(pod, current, g.config.Clock.Now()):
		poke(g.batch)
	}
	g.warnOfDelay(pod)
	g.warnOfGang(pod, decision)
	poke(g.earlier)
}

// mayWait reports whether the pod has no node and is not terminating. The scheduler does not try a terminating pod.
func mayWait(pod *v1.Pod) bool { return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil }

// waits reports whether the pod in the informer's store may wait.
func (g *Gatekeeper) waits(pod *v1.Pod) bool {
	current := g.current(pod)
	return current != nil && mayWait(current)
}

// current returns the pod from the informer's store, or nil if the pod was deleted.
func (g *Gatekeeper) current(pod *v1.Pod) *v1.Pod {
	if current, err := g.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && current.UID == pod.UID {
		return current
	}
	return nil
}

// deleted drops all entries of a pod that is being deleted, or is bound.
func (g *Gatekeeper) deleted(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		g.held.Deleted(pod, g.rule.SeenFrom(pod), g.config.Clock.Now())
	}
	g.forget(pod.UID)
}

// forget drops all entries of a pod that was bound or deleted.
func (g *Gatekeeper) forget(pod types.UID) {
	g.cycleEnded(pod)
	if found := g.full.Load(); g.held.Remove(pod) && found != nil && !found.pods[pod] {
		g.full.Store(nil) // the pod leaves its room on upcoming nodes to others, or has taken other room
		poke(g.earlier)
	}
	g.declines.Forget(pod)
}

// cycleEnded records that a scheduling cycle of the pod failed, or that the pod was bound or deleted. If budget was
// reserved for the pod, cycleEnded makes the loop admit other pods.
func (g *Gatekeeper) cycleEnded(pod types.UID) {
	batch, budget := g.held.Ended(pod, g.config.Clock.Now())
	if batch {
		poke(g.batch)
	}
	if budget {
		g.budgetFreed.Store(true)
		poke(g.earlier)
	}
}

// Held returns the pods that the gate holds back.
func (g *Gatekeeper) Held() *held.Pods { return g.held }

// BindingDenied makes the loop look at the bindings that admission denied.
func (g *Gatekeeper) BindingDenied() { poke(g.changed) }

// Waited returns how long the pod has been unschedulable, or 0 if that is not known.
func (g *Gatekeeper) Waited(pod *v1.Pod) time.Duration {
	now := g.config.Clock.Now()
	if since := g.held.Since(pod, now).Unschedulable; !since.IsZero() && since.Before(now) {
		return now.Sub(since)
	}
	return 0
}

// Assume replaces the view, clears the override, and makes the gatekeeper use the times in the pods' conditions. Tests
// call Assume instead of Run.
func (g *Gatekeeper) Assume(view *nodegroups.View) {
	g.view.Store(view)
	g.override.Current.Store(&gate.Override{})
	g.held.Trust(g.config.Clock.Now())
	g.loop.takenOver = true
}

// overridden returns the gate's rule with the current override.
func (g *Gatekeeper) overridden() gate.Rule {
	rule := g.rule
	rule.Override = *g.override.Current.Load()
	return rule
}

// recorder shortens messages, because the API server accepts at most 1,024 bytes in the note of an event.
type recorder struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (r recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", refusal.Short(fmt.Sprintf(note, args...), refusal.MaxEvent))
}

var poke = publishing.Poke
