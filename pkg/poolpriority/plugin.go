// Package poolpriority is the scheduling-framework plugin that fills node pools in order. One file a phase: ordering.go
// proves which pool a pod goes to (narrowing.go when), filtering.go keeps it there and keeps burst pools closed, scoring.go
// weighs the order where it is only preferred, binding.go binds with the order of scale-in while the scheduler leads,
// requeue.go wakes pods that events help. Beside the cycle, gatekeeper.go judges the pools (sources.go), wakes the pods that it held (held.go), and tells of it (publish.go,
// problems.go, metrics.go).
package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"
	"k8s.io/utils/clock"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/pool"
)

// PoolPriority is a plugin that places a pod in the best-ranked pool that has a feasible node, and opens burst pools to
// it only when no earlier pool can grow.
type PoolPriority struct {
	handle framework.Framework
	pools  pool.List
	strict bool
	// observe says that the gate holds nothing back.
	observe bool
	// given are, by burst pool, the tolerations that pods are given for its nodes.
	given [][]v1.Toleration
	// taints is the in-tree plugin, asked about a copy of the pod where taints are looked past.
	taints   fwk.FilterPlugin
	features feature.Features

	nodes        corelisters.NodeLister
	pods         corelisters.PodLister
	deletionCost bool     // pods are bound with it
	kinds        sync.Map // kinds of workloads that were said not to go by it

	index      *index
	filters    func() sets.Set[string] // the names of the filter plugins
	gate       *gatekeeper             // nil without burst pools
	leadership *lease.Leadership       // nil if this scheduler is the only one
	binder     typedcorev1.PodsGetter
	wrapped    bool // the profile looks for the best pool after PreFilter
}

var _ fwk.PreFilterPlugin = &PoolPriority{}
var _ fwk.FilterPlugin = &PoolPriority{}
var _ fwk.PostFilterPlugin = &PoolPriority{}
var _ fwk.PreScorePlugin = &PoolPriority{}
var _ fwk.ScorePlugin = &PoolPriority{}
var _ fwk.BindPlugin = &PoolPriority{}
var _ fwk.EnqueueExtensions = &PoolPriority{}
var _ fwk.SignPlugin = &PoolPriority{}

const (
	// Name is the name of the plugin used in the plugin registry and configurations.
	Name = configv1.PluginName

	// stateKey is the key in CycleState to what PreFilter decided.
	stateKey = "PreFilter" + Name

	// ErrReasonBetterPool is the Filter reason for nodes ranked below the pool that has room.
	ErrReasonBetterPool = "node(s) in a pool ranked below one that has room"
	// ErrReasonExcluded is the Filter reason for a virtual kubelet's nodes that no burst pool lists.
	ErrReasonExcluded = "node(s) of a virtual kubelet in no burst pool"
	// ErrReasonUnavailable is the Filter reason for burst nodes that are not ready or are cordoned.
	ErrReasonUnavailable = "node(s) in a burst pool that are not ready or are cordoned"
)

// Name returns name of the plugin. It is used in logs, etc.
func (pl *PoolPriority) Name() string { return Name }

// New initializes a new plugin and returns it. It returns an error that lists everything that is wrong with args. The plugin
// counts as leading, and tells the world of the pools, from the first scheduling cycle on.
func New(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	return newPlugin(ctx, args, handle, clock.RealClock{})
}

func newPlugin(ctx context.Context, obj runtime.Object, handle fwk.Handle, clock clock.WithTicker) (*PoolPriority, error) {
	args, ok := obj.(*configv1.PoolPriorityArgs)
	if !ok {
		return nil, fmt.Errorf("no arguments of kind PoolPriorityArgs (got %T): add pluginConfig: [{name: %s, args: {pools: […]}}] to the profile", obj, Name)
	}
	if errs := configv1.Validate(args); len(errs) > 0 {
		lines := make([]string, len(errs))
		for i, err := range errs {
			lines[i] = "  " + err.Error()
		}
		return nil, fmt.Errorf("%d error(s) in PoolPriorityArgs:\n%s", len(errs), strings.Join(lines, "\n"))
	}
	f, ok := handle.(framework.Framework)
	if !ok {
		return nil, fmt.Errorf("the handle is a %T, not the scheduler's framework", handle)
	}
	pools, err := pool.NewList(args.Pools)
	if err != nil {
		return nil, err
	}
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	taints, err := tainttoleration.New(ctx, nil, handle, features)
	if err != nil {
		return nil, fmt.Errorf("initializing %s: %w", names.TaintToleration, err)
	}
	registerMetrics()
	pl := &PoolPriority{
		handle:       f,
		pools:        pools,
		strict:       args.Order == configv1.OrderStrict,
		observe:      args.Mode == configv1.ModeObserve,
		taints:       taints.(fwk.FilterPlugin),
		features:     features,
		binder:       f.ClientSet().CoreV1(),
		nodes:        f.SharedInformerFactory().Core().V1().Nodes().Lister(),
		pods:         f.SharedInformerFactory().Core().V1().Pods().Lister(),
		deletionCost: *args.ScaleIn.PodDeletionCost,
		index:        newIndex(pools),
		filters: sync.OnceValue(func() sets.Set[string] {
			enabled := sets.New[string]()
			for _, plugin := range f.ListPlugins().Filter.Enabled {
				enabled.Insert(plugin.Name)
			}
			return enabled
		}),
	}
	for i := pools.Regular(); i < pools.Len(); i++ {
		var given []v1.Toleration
		if !pl.observe {
			given = pools.At(i).Tolerations()
		}
		pl.given = append(pl.given, given)
	}
	if pools.HasBurst() {
		if pl.gate, err = newGatekeeper(ctx, args, pools, f, clock); err != nil {
			return nil, err
		}
	}
	return pl, nil
}

// checkProfile returns what is wrong with the plugin's place among the other plugins of the profile.
func (pl *PoolPriority) checkProfile() error {
	plugins := pl.handle.ListPlugins()
	var errs []error
	complain := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("profile %q: "+format, append([]any{pl.handle.ProfileName()}, args...)...))
	}
	if i, n := find(plugins.PreFilter, Name), len(plugins.PreFilter.Enabled); i < 0 {
		complain("%s is not among the preFilter plugins: enable it under multiPoint", Name)
	} else if i != n-1 {
		complain("%s comes before %s among the preFilter plugins and must come after all: put it last under multiPoint",
			Name, plugins.PreFilter.Enabled[n-1].Name)
	}
	if i := find(plugins.Filter, Name); i != 0 {
		complain("%s must be first among the filter plugins: add filter: {enabled: [{name: %s}]}", Name, Name)
	}
	if find(plugins.Filter, names.TaintToleration) >= 0 && pl.pools.HasBurst() {
		complain("%s is among the filter plugins, and %s asks it itself: add filter: {disabled: [{name: %s}]}",
			names.TaintToleration, Name, names.TaintToleration)
	}
	if i := find(plugins.PostFilter, Name); i != 0 {
		complain("%s must be first among the postFilter plugins: add postFilter: {enabled: [{name: %s}]}", Name, Name)
	}
	if i := find(plugins.Score, Name); i < 0 && !pl.strict {
		complain("%s is not among the score plugins, where order: %s has its effect: enable it under multiPoint", Name, configv1.OrderPreferred)
	}
	if i := find(plugins.Bind, Name); i != 0 && pl.deletionCost {
		complain("%s is not the first bind plugin, and pods get their deletion cost as they are bound: add bind: {disabled: [{name: %s}]} or set scaleIn: {podDeletionCost: false}",
			Name, names.DefaultBinder)
	}
	for _, extender := range pl.handle.Extenders() {
		if extender.IsBinder() && pl.deletionCost {
			complain("extender %q binds pods, which get no deletion cost then: remove its bindVerb or set scaleIn: {podDeletionCost: false}", extender.Name())
		}
		if extender.IsFilter() && pl.strict {
			complain("extender %q filters nodes after the order was decided, which cannot be kept then: remove it or set order: %s",
				extender.Name(), configv1.OrderPreferred)
		}
	}
	return errors.Join(errs...)
}

func find(set schedconfig.PluginSet, name string) int {
	for i := range set.Enabled {
		if set.Enabled[i].Name == name {
			return i
		}
	}
	return -1
}

// SignPod covers the pod's fields that the order and the gate depend on: what Filter reads of it, and what says which
// pools are applicable.
func (pl *PoolPriority) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	affinity, err := fwk.NodeAffinitySigner(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	fragments := []fwk.SignFragment{
		{Key: fwk.TolerationsSignerName, Value: fwk.TolerationsSigner(pod)},
		{Key: fwk.NodeAffinitySignerName, Value: affinity},
		{Key: fwk.NodeSelectorSignerName, Value: pod.Spec.NodeSelector},
		{Key: "poolpriority.requests()", Value: podRequests(pod)},
	}
	if pl.gate != nil {
		fragments = append(fragments, fwk.SignFragment{Key: "poolpriority.burst()", Value: gate.Signature(pl.gate.request(pod))})
	}
	return fragments, nil
}
