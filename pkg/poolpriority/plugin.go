// Package poolpriority is the scheduling-framework plugin that fills node pools in order. There is one file for each
// phase. ordering.go chooses the pool of a pod by a search (search.go) over an index of the snapshot (index.go).
// surge.go makes new pods of a rollout wait until old pods have left. headroom.go makes pods preempt placeholders before
// they burst. narrowing.go runs the search at the end of
// PreFilter, and diagnoses.go caches why equal pods fit no node. filtering.go rejects nodes outside the pod's pool and
// in closed burst pools. scoring.go scores nodes by rank if args.order is Preferred. preempting.go makes preemption
// prefer better-ranked pools. binding.go binds pods and sets their deletion costs. assumed.go refuses a binding to a
// worse node if a pod could not be bound to a better one. requeue.go registers the events that requeue pods, and
// retrying.go retries pods that lost a race.
// Package gatekeeper decides which gates are open. It also runs outside the scheduling cycle.
package poolpriority

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"
	"k8s.io/utils/clock"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/compat/gating"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/returner"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/pkg/version"
)

// PoolPriority is a plugin that places a pod in the best-ranked pool that has a feasible node, and opens burst pools to
// the pod only when no better-ranked pool can grow.
type PoolPriority struct {
	handle    framework.Framework
	clock     clock.Clock
	pools     pool.List
	strict    bool
	holds     bool // there are burst pools, and args.mode is Enforce
	gateTaint bool // the controller sets the gate taint on burst nodes
	// given lists, by the index of a burst pool, the tolerations that a pod gets on the nodes of the pool.
	given [][]v1.Toleration
	// taints is the in-tree plugin TaintToleration. For burst nodes, it filters a copy of the pod to which the
	// tolerations of the burst pool are added.
	taints   fwk.FilterPlugin
	features feature.Features

	nodes         corelisters.NodeLister
	pods          corelisters.PodLister
	namespaces    atomic.Int64 // grows when a namespace comes, changes or goes
	deletionCost  bool         // pods get a deletion cost when they are bound
	gateTaintSeen atomic.Bool  // whether a burst node with the gate taint has been seen
	untainted     sync.Map     // when each new burst node without the gate taint was first seen, by UID

	index      *index
	filters    sets.Set[string]       // the names of the Filter plugins; empty before EventsToRegister
	gatekeeper *gatekeeper.Gatekeeper // nil without burst pools
	leadership *lease.Leadership      // nil if the plugin was created without a Factory
	binder     typedcorev1.PodsGetter
	byLoop     bool // requeueByLoop wraps the scheduler's handler of failed cycles
	gates      bool // gatingPlugin may gate pods
	retries    retries
	roomTries  retries // how many times each pod has tried to make room and got no node
	warned     retries // the owners for which warnOfOrder has written an event
	assumed    *assumedPods
	diagnoses  diagnosisCache
	denied     *denial.Bindings
	preemption *preemptor // nil if the profile does not enable DefaultPreemption
	returns    bool       // a pool has Return enabled, and args.mode is Enforce
}

var _ fwk.PreEnqueuePlugin = &PoolPriority{}
var _ fwk.PreFilterPlugin = &PoolPriority{}
var _ fwk.FilterPlugin = &PoolPriority{}
var _ fwk.PostFilterPlugin = &PoolPriority{}
var _ fwk.PreScorePlugin = &PoolPriority{}
var _ fwk.ScorePlugin = &PoolPriority{}
var _ fwk.ReservePlugin = &PoolPriority{}
var _ fwk.BindPlugin = &PoolPriority{}
var _ fwk.PostBindPlugin = &PoolPriority{}
var _ fwk.EnqueueExtensions = &PoolPriority{}
var _ fwk.SignPlugin = &PoolPriority{}

const (
	// Name is the name of the plugin used in the plugin registry and configurations.
	Name = configv1.PluginName

	// stateKey is the key of the plugin's own data (type cycle) in CycleState.
	stateKey = "PreFilter" + Name

	// publishQPS and publishBurst limit the requests for the published state, which is written once a second at most.
	publishQPS, publishBurst = 5, 10
	// evictQPS and evictBurst limit the requests of Return and those that evict lost pods.
	evictQPS, evictBurst = 20, 40
)

// Name returns the name of the plugin.
func (pl *PoolPriority) Name() string { return Name }

// newPlugin returns a plugin whose gatekeeper is not running yet.
func newPlugin(ctx context.Context, obj runtime.Object, handle fwk.Handle, clock clock.WithTicker) (*PoolPriority, error) {
	args, err := validArgs(obj)
	if err != nil {
		return nil, err
	}
	f, ok := handle.(framework.Framework)
	if !ok {
		return nil, fmt.Errorf("the handle is a %T, not the scheduler's framework", handle)
	}
	pools, err := pool.ListOf(args)
	if err != nil {
		return nil, err
	}
	if pools.HasBurst() && utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		return nil, fmt.Errorf("the feature gate %s is on: kube-scheduler schedules the pods of a group together, and the gate of a burst pool cannot hold them: disable the feature gate, or remove the burst pools", features.GenericWorkload)
	}
	schedulerFeatures := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	taints, err := tainttoleration.New(ctx, nil, handle, schedulerFeatures)
	if err != nil {
		return nil, fmt.Errorf("initializing %s: %w", names.TaintToleration, err)
	}
	registerMetrics()
	beginMetrics(pools)
	pl := &PoolPriority{
		handle:       f,
		clock:        clock,
		pools:        pools,
		holds:        pools.HasBurst() && args.Mode != configv1.ModeObserve,
		gateTaint:    *args.GateTaint && args.Mode != configv1.ModeObserve,
		strict:       args.Order == configv1.OrderStrict,
		given:        make([][]v1.Toleration, pools.Len()),
		taints:       taints.(fwk.FilterPlugin),
		features:     schedulerFeatures,
		binder:       f.ClientSet().CoreV1(),
		nodes:        f.SharedInformerFactory().Core().V1().Nodes().Lister(),
		pods:         f.SharedInformerFactory().Core().V1().Pods().Lister(),
		deletionCost: args.ScaleIn.DeletionCosts != configv1.CostsNone,
		index:        newIndex(pools, f.ProfileName()),
		retries:      newRetries(),
		roomTries:    newRetries(),
		warned:       newRetries(),
		assumed:      newAssumedPods(),
		denied:       denial.NewBindings(),
		filters:      sets.New[string](),
		returns:      pools.Returns() && args.Mode != configv1.ModeObserve,
	}
	if args.Mode != configv1.ModeObserve {
		for i := range pools.Burst() {
			pl.given[i] = pools.At(i).Tolerations()
		}
	}
	changed := func(any) { pl.namespaces.Add(1) }
	_, _ = f.SharedInformerFactory().Core().V1().Namespaces().Informer().AddEventHandler( // fails only after the end
		cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, _ any) { changed(nil) }, DeleteFunc: changed})
	if pools.HasBurst() {
		if pl.gatekeeper, err = newGatekeeper(ctx, args, pools, pl.denied, f, clock); err != nil {
			return nil, err
		}
	}
	return pl, nil
}

// Factory creates the plugin for the profiles of one scheduler.
type Factory struct {
	// Lease returns the name of the leader's lease. The installation gets its name from this lease. New calls Lease.
	// The field is nil if the name of the lease is not known.
	Lease func() string

	leadership *lease.Leadership
	evictor    kubernetes.Interface // nil if the plugin was created without the configuration of a client
	plugin     *PoolPriority        // nil before New has created it
	profile    string               // the name of the plugin's profile
}

// NewFactory returns a factory for a scheduler that acts only while leadership lasts. Other replicas may be on standby.
func NewFactory(leadership *lease.Leadership) *Factory {
	return &Factory{leadership: leadership}
}

// New creates the plugin, or returns an error that lists all mistakes in args. The plugin acts only while the factory's
// leadership lasts.
func (f *Factory) New(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if own, ok := args.(*configv1.PoolPriorityArgs); ok && f.Lease != nil {
		installation, invalid := configv1.InstallationOf(f.Lease())
		if invalid != nil {
			return nil, invalid
		}
		own = own.DeepCopy()
		own.Installation, args = installation, own
	}
	pl, err := newPlugin(ctx, args, handle, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	pl.leadership = f.leadership
	if config := handle.KubeConfig(); config != nil {
		if pl.binder, err = typedcorev1.NewForConfig(f.leadership.Config(config, config.QPS, config.Burst)); err != nil {
			return nil, fmt.Errorf("making the client that binds pods: %w", err)
		}
		if f.evictor, err = kubernetes.NewForConfig(f.leadership.Config(config, evictQPS, evictBurst)); err != nil {
			return nil, fmt.Errorf("making the client that evicts pods: %w", err)
		}
		if pl.gatekeeper != nil {
			publisher, err := typedcorev1.NewForConfig(f.leadership.Config(config, publishQPS, publishBurst))
			if err != nil {
				return nil, fmt.Errorf("making the client that publishes the state: %w", err)
			}
			pl.gatekeeper.PublishWith(publisher)
			pl.gatekeeper.EvictWith(f.evictor.CoreV1())
		}
	}
	f.plugin, f.profile = pl, pl.handle.ProfileName()
	if pl.gatekeeper != nil {
		pl.gatekeeper.EndsWith(f.leadership.Ended)
		go pl.gatekeeper.Run(ctx)
		go func() {
			select {
			case <-ctx.Done():
			case <-f.leadership.Began():
				pl.gatekeeper.Lead()
			}
		}()
	}
	return pl, nil
}

// Wrap makes the plugin's profile search for the best pool after all PreFilter plugins, and makes preemption prefer
// better-ranked pools (preempting.go). It also makes the gatekeeper requeue most held pods (requeueByLoop), and starts
// Return, which runs until the context ends. Call Wrap before the scheduler runs. configs is the configuration of the
// profiles.
func (f *Factory) Wrap(ctx context.Context, sched *scheduler.Scheduler, configs []schedconfig.KubeSchedulerProfile) {
	i := slices.IndexFunc(configs, func(c schedconfig.KubeSchedulerProfile) bool { return c.SchedulerName == f.profile })
	if profile, ok := sched.Profiles[f.profile]; ok && i >= 0 {
		var known bool
		f.plugin.preemption, known = f.plugin.newPreemptor(profile)
		known = known && preemptsLowerOnly(profile)
		sched.Profiles[f.profile] = &narrowing{Framework: profile, pl: f.plugin, lowerOnly: known}
		// The gatekeeper does not know which resources NodeResourcesFit ignores.
		fit, _ := argsOf(&configs[i], names.NodeResourcesFit).(*schedconfig.NodeResourcesFitArgs)
		if f.plugin.byLoop = f.plugin.holds && known && fit != nil && len(fit.IgnoredResources)+len(fit.IgnoredResourceGroups) == 0; f.plugin.byLoop {
			sched.FailureHandler = f.plugin.requeueByLoop(sched.FailureHandler)
			f.plugin.gates = find(profile.ListPlugins().PreEnqueue, Name) >= 0
			sched.SchedulingQueue = gating.Queue{SchedulingQueue: sched.SchedulingQueue, Plugin: f.plugin.gatingPlugin, Freed: f.plugin.gatekeeper.Freed}
		}
		if f.plugin.returns && f.evictor != nil {
			f.startReturn(ctx, sched, &configs[i])
		}
	}
}

// startReturn starts Return, with a framework of its own: the profile's may be used in scheduling cycles only. If Return
// cannot be started, the scheduler runs without it.
func (f *Factory) startReturn(ctx context.Context, sched *scheduler.Scheduler, profile *schedconfig.KubeSchedulerProfile) {
	pl := f.plugin
	config := returner.Config{
		Pools: pl.pools, Profile: profile, Informers: pl.handle.SharedInformerFactory(), Client: f.evictor,
		Recorder: pl.handle.EventRecorder(), Clock: pl.clock, Report: func(map[types.UID]returnplan.Pause, string) {},
	}
	leads, pauses := f.leadership.Began(), func() map[types.UID]returnplan.Pause { return nil }
	if pl.gatekeeper != nil {
		leads, pauses, config.Report = pl.gatekeeper.TookOver(), pl.gatekeeper.Pauses, pl.gatekeeper.Returned
	}
	r, err := returner.New(ctx, config)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Pods are not returned to better pools, because the setup failed")
		return
	}
	returner.BeginMetrics(pl.pools)
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-leads:
		}
		if sched.WaitForHandlersSync(ctx) == nil { // without leader election, the informers may not run yet
			config.Informers.WaitForCacheSync(ctx.Done())
			r.Run(ctx, pauses())
		}
	}()
}

func find(set schedconfig.PluginSet, name string) int {
	return slices.IndexFunc(set.Enabled, func(p schedconfig.Plugin) bool { return p.Name == name })
}

// validArgs returns the arguments, or an error that lists everything that is wrong with them.
func validArgs(obj runtime.Object) (*configv1.PoolPriorityArgs, error) {
	args, ok := obj.(*configv1.PoolPriorityArgs)
	if !ok {
		return nil, fmt.Errorf("no arguments of kind PoolPriorityArgs (got %T): add pluginConfig: [{name: %s, args: {pools: […]}}] to the profile", obj, Name)
	}
	return args, configv1.Validate(args).ToAggregate()
}

// newGatekeeper creates the gatekeeper with the clients, informers and event recorder of the framework's handle.
func newGatekeeper(ctx context.Context, args *configv1.PoolPriorityArgs, pools pool.List, denied *denial.Bindings, handle framework.Framework, clock clock.WithTicker) (*gatekeeper.Gatekeeper, error) {
	config := gatekeeper.Config{
		Args: args, Pools: pools, Client: handle.ClientSet(), Informers: handle.SharedInformerFactory(), Recorder: handle.EventRecorder(),
		Activate: handle.Activate, Clock: clock, Version: version.String(), SchedulerName: handle.ProfileName(), Denied: denied,
	}
	config.Identity, _ = os.Hostname() // only shown to users
	if handle.KubeConfig() != nil {
		var err error
		if config.Dynamic, err = dynamic.NewForConfig(handle.KubeConfig()); err != nil {
			return nil, fmt.Errorf("making a client for NodePools: %w", err)
		}
	}
	return gatekeeper.New(ctx, config)
}

// SignPod returns the fields of the pod that the order and the gate depend on. Some of these fields are inputs of
// Filter. The others decide which pools the pod may use.
func (pl *PoolPriority) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	affinity, err := fwk.NodeAffinitySigner(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	fragments := []fwk.SignFragment{
		{Key: fwk.TolerationsSignerName, Value: fwk.TolerationsSigner(pod)},
		{Key: fwk.NodeAffinitySignerName, Value: affinity},
		{Key: fwk.NodeSelectorSignerName, Value: pod.Spec.NodeSelector},
		{Key: "poolpriority.requests()", Value: pl.requestsOf(pod)},
		{Key: "poolpriority.order()", Value: pool.OrderValue(pod)},
	}
	if pl.gatekeeper != nil {
		fragments = append(fragments, fwk.SignFragment{Key: "poolpriority.burst()", Value: pl.gatekeeper.SchedulerSignature(pod)})
	}
	return fragments, nil
}
