// Package scheduler replaces k8s.io/kubernetes/pkg/scheduler in Kubernetes' own integration tests. The schedulers that
// the tests make have the plugin PoolPriority, placed in the profile and wrapped as in the shipped binary. The
// environment variable POOLS sets the plugin's pools, and PERCENTAGE the scheduler's percentageOfNodesToScore.
package scheduler

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/features"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	upstream "k8s.io/kubernetes/pkg/scheduler"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/poolpriority"
)

// Scheduler is the type of the replaced package.
type Scheduler = upstream.Scheduler

// NewInformerFactory is the function of the replaced package.
var NewInformerFactory = upstream.NewInformerFactory

// Option configures a Scheduler.
type Option func(*settings)

// settings are the options of New.
type settings struct {
	others   []upstream.Option
	profiles []schedconfig.KubeSchedulerProfile
	registry frameworkruntime.Registry
	change   []func(*configv1.PoolPriorityArgs)
}

func other(option upstream.Option) Option {
	return func(s *settings) { s.others = append(s.others, option) }
}

// The options of the replaced package.

func WithKubeConfig(config *restclient.Config) Option { return other(upstream.WithKubeConfig(config)) }
func WithExtenders(e ...schedconfig.Extender) Option  { return other(upstream.WithExtenders(e...)) }
func WithClock(clock clock.WithTicker) Option         { return other(upstream.WithClock(clock)) }
func WithParallelism(threads int32) Option            { return other(upstream.WithParallelism(threads)) }
func WithPercentageOfNodesToScore(p *int32) Option {
	return other(upstream.WithPercentageOfNodesToScore(p))
}
func WithPodInitialBackoffSeconds(seconds int64) Option {
	return other(upstream.WithPodInitialBackoffSeconds(seconds))
}
func WithPodMaxBackoffSeconds(seconds int64) Option {
	return other(upstream.WithPodMaxBackoffSeconds(seconds))
}
func WithProfiles(p ...schedconfig.KubeSchedulerProfile) Option {
	return func(s *settings) { s.profiles = p }
}
func WithFrameworkOutOfTreeRegistry(registry frameworkruntime.Registry) Option {
	return func(s *settings) { s.registry = registry }
}

// WithOrderPreferred gives the plugin order: Preferred, for extenders that filter.
func WithOrderPreferred() Option {
	return func(s *settings) {
		s.change = append(s.change, func(args *configv1.PoolPriorityArgs) { args.Order = configv1.OrderPreferred })
	}
}

// WithoutDeletionCost gives the plugin scaleIn: {deletionCosts: None}, for tests with their own Bind plugins or
// binding extenders.
func WithoutDeletionCost() Option {
	return func(s *settings) {
		s.change = append(s.change, func(args *configv1.PoolPriorityArgs) { args.ScaleIn.DeletionCosts = configv1.CostsNone })
	}
}

// New returns a Scheduler whose first profile has the plugin, because only one profile of a process may have it.
func New(ctx context.Context, client clientset.Interface, informerFactory informers.SharedInformerFactory,
	dynInformerFactory dynamicinformer.DynamicSharedInformerFactory, recorderFactory profile.RecorderFactory, opts ...Option) (*Scheduler, error) {
	var s settings
	for _, opt := range opts {
		opt(&s)
	}
	if s.profiles == nil {
		defaults, err := latest.Default()
		if err != nil {
			return nil, err
		}
		s.profiles = defaults.Profiles
	}
	// This is the only scheduler of its cluster, so it always leads.
	leadership := lease.NewLeadership()
	leadership.Extend(time.Now().AddDate(100, 0, 0))
	factory := poolpriority.NewFactory(leadership)
	if pools := os.Getenv("POOLS"); pools != "" {
		args, err := arguments(pools)
		if err != nil {
			return nil, err
		}
		for _, change := range s.change {
			change(args)
		}
		s.profiles = slices.Clone(s.profiles)
		s.profiles[0] = place(s.profiles[0], args)
		s.registry = maps.Clone(s.registry)
		if s.registry == nil {
			s.registry = frameworkruntime.Registry{}
		}
		s.registry[poolpriority.Name] = factory.New
	}
	if percentage, err := strconv.ParseInt(os.Getenv("PERCENTAGE"), 10, 32); err == nil {
		s.others = append(s.others, upstream.WithPercentageOfNodesToScore(ptr.To(int32(percentage))))
	}
	sched, err := upstream.New(ctx, client, informerFactory, dynInformerFactory, recorderFactory,
		append(s.others, upstream.WithProfiles(s.profiles...), upstream.WithFrameworkOutOfTreeRegistry(s.registry))...)
	if err != nil {
		return nil, err
	}
	plain := maps.Clone(sched.Profiles)
	factory.Wrap(ctx, sched, s.profiles)
	for name, wrapped := range sched.Profiles {
		unwrapped.Store(wrapped, plain[name])
	}
	return sched, nil
}

var unwrapped sync.Map // by the profile of a Scheduler

// Unwrapped returns the profile without the plugin's wrapper.
func Unwrapped(profile framework.Framework) framework.Framework {
	f, _ := unwrapped.Load(profile)
	return f.(framework.Framework)
}

// arguments returns the plugin's arguments: pools that match no node, one pool of all nodes, or the pools of PoolOf.
func arguments(pools string) (*configv1.PoolPriorityArgs, error) {
	labelled := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	none := func(value string) *metav1.LabelSelector { return labelled("test.poolpriority.dev/pool", value) }
	all := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "test.poolpriority.dev/pool", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	args := &configv1.PoolPriorityArgs{}
	switch pools {
	case "none":
		args.Pools = []configv1.Pool{
			{Name: "user", NodeSelector: none("user"), Fixed: &configv1.FixedSource{}},
			{Name: "system", NodeSelector: none("system"), Fixed: &configv1.FixedSource{}},
		}
	case "all":
		args.Pools = []configv1.Pool{{Name: "all", NodeSelector: all, Fixed: &configv1.FixedSource{}}}
	case "three":
		for _, name := range []string{"first", "second", "third"} {
			args.Pools = append(args.Pools, configv1.Pool{Name: name, NodeSelector: labelled(PoolLabel, name), Fixed: &configv1.FixedSource{}})
		}
	default:
		return nil, fmt.Errorf("POOLS is %q: it may be none, all or three", pools)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) { // with it, a scheduler with a burst pool does not start
		args.Pools = append(args.Pools, configv1.Pool{Name: "virtual", NodeSelector: none("virtual"), Burst: &configv1.Burst{}})
	}
	configv1.SetDefaults_PoolPriorityArgs(args)
	return args, nil
}

// place returns the profile with the plugin in its places: last among the PreFilter plugins, first among the Filter and
// PostFilter plugins, and instead of DefaultBinder. It disables the Filter of TaintToleration, which the plugin calls
// itself. A profile with its own Bind plugins keeps them.
func place(profile schedconfig.KubeSchedulerProfile, args *configv1.PoolPriorityArgs) schedconfig.KubeSchedulerProfile {
	profile = *profile.DeepCopy()
	plugins, ours := profile.Plugins, schedconfig.Plugin{Name: poolpriority.Name}
	plugins.MultiPoint.Enabled = append(plugins.MultiPoint.Enabled, ours)
	// Plugins that are only under preFilter come after those under multiPoint.
	plugins.PreFilter.Disabled = append(plugins.PreFilter.Disabled, ours)
	plugins.PreFilter.Enabled = append(plugins.PreFilter.Enabled, ours)
	plugins.Filter.Enabled = slices.Insert(plugins.Filter.Enabled, 0, ours)
	plugins.Filter.Disabled = append(plugins.Filter.Disabled, schedconfig.Plugin{Name: names.TaintToleration})
	plugins.PostFilter.Enabled = slices.Insert(plugins.PostFilter.Enabled, 0, ours)
	named := func(plugin schedconfig.Plugin) bool { return plugin.Name == names.DefaultBinder }
	if len(plugins.Bind.Enabled) == 0 && !slices.ContainsFunc(plugins.Bind.Disabled, named) && slices.ContainsFunc(plugins.MultiPoint.Enabled, named) {
		plugins.Bind.Disabled = append(plugins.Bind.Disabled, schedconfig.Plugin{Name: names.DefaultBinder})
	} else {
		plugins.Bind.Disabled = append(plugins.Bind.Disabled, ours)
		args.ScaleIn.DeletionCosts = configv1.CostsNone
	}
	profile.PluginConfig = append(profile.PluginConfig, schedconfig.PluginConfig{Name: poolpriority.Name, Args: args})
	return profile
}
