package poolpriority

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/utils/clock"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/lease"
)

// Factory makes the plugin for the profiles of one scheduler.
type Factory struct {
	// Lease returns the name of the leader's lease, which names the installation. It is asked when a plugin is made; nil: the name is not known.
	Lease func() string

	leadership *lease.Leadership
	plugin     *PoolPriority // nil: none has been made
	profile    string        // the plugin's
}

// NewFactory returns a factory for a scheduler that may have others standing by.
func NewFactory(leadership *lease.Leadership) *Factory {
	return &Factory{leadership: leadership}
}

// New is like the function New, for the factory's scheduler.
func (f *Factory) New(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if f.plugin != nil { // the second would fail over what the first has registered
		return nil, fmt.Errorf("profile %q configures the plugin %s already, and only one may: run a scheduler for each list of pools", f.profile, Name)
	}
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
	if pl.binder, err = f.leadership.Pods(handle.KubeConfig(), handle.ClientSet().CoreV1()); err != nil {
		return nil, fmt.Errorf("making the client that binds pods: %w", err)
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

// Wrap has the profiles that have the plugin look for the best pool on the cycle's own state, once all PreFilter plugins have run.
// A plugin by itself has no place for that: it must run them all a second time in its PreFilter, which doubles what a cycle takes for
// pods with topology spread constraints or inter-pod affinity. The placements are the same. Preemption prefers better-ranked pools then, too (preempting.go). To be called before the scheduler runs.
func (f *Factory) Wrap(profiles map[string]framework.Framework) error {
	if profile, ok := profiles[f.profile]; ok {
		preemption, err := f.plugin.newPreemption(profile)
		if err != nil {
			return err
		}
		f.plugin.wrapped = true
		profiles[f.profile] = &narrowing{Framework: profile, pl: f.plugin, preemption: preemption, lowerOnly: preemptsLowerOnly(profile)}
	}
	return nil
}

// narrowing is a profile whose PreFilter ends with the search for the best pool.
type narrowing struct {
	framework.Framework
	pl         *PoolPriority
	preemption *defaultpreemption.DefaultPreemption // nil: the profile has none
	lowerOnly  bool                                 // PostFilter plugins preempt pods of lower priority, if any
}

// RunPreFilterPlugins runs the PreFilter plugins, and narrows the cycle to nodes of the best rank that has room.
func (n *narrowing) RunPreFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (*fwk.PreFilterResult, *fwk.Status, sets.Set[string]) {
	result, status, plugins := n.Framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		if n.pl.gatekeeper != nil {
			n.pl.gatekeeper.Release(pod.UID)
		}
		return result, status, plugins
	}
	c, err := readCycle(state)
	if err != nil {
		return result, fwk.AsStatus(err), plugins
	}
	if spread := n.pl.asSpread(c, pod); spread != nil {
		if result, status, plugins = n.Framework.RunPreFilterPlugins(ctx, state, spread); !status.IsSuccess() {
			return result, status, plugins
		}
	}
	var recalled *objections
	err = n.pl.choose(ctx, c, pod, func() (*search, error) {
		c.search = n.pl.newSearch(state, pod, c.nodes, result)
		recalled = n.pl.failures.recall(ctx, c.search)
		c.search.burstOnly = recalled != nil
		return c.search, nil
	})
	if err != nil {
		return result, fwk.AsStatus(fmt.Errorf("searching for the best pool: %w", err)), plugins
	}
	if recalled != nil && !c.narrowed {
		if status := n.repeat(ctx, state, pod, c, recalled); status != nil {
			c.repeated = true
			repeatedFailures.Inc()
			return nil, status, recalled.plugins.Union(plugins)
		}
	}
	if c.narrowed {
		return &fwk.PreFilterResult{NodeNames: c.found}, status, plugins.Union(sets.New(Name))
	}
	return result, status, plugins
}

// RunFilterPluginsWithNominatedPods runs the Filter plugins.
func (n *narrowing) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	status, alone := runFilters(ctx, n.Framework, state, pod, node)
	if !alone {
		if c, err := readCycle(state); err == nil {
			c.flags.beside.Store(node.Node().Name, nil)
		}
	}
	return status
}

// runFilters runs the profile's Filter plugins as a cycle does, and reports whether no pod is nominated to the node. Such a node, as most
// are, is spared what the framework prepares for those.
func runFilters(ctx context.Context, profile framework.Framework, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (status *fwk.Status, alone bool) {
	if len(profile.NominatedPodsForNode(node.Node().Name)) == 0 {
		return profile.RunFilterPlugins(ctx, state, pod, node), true
	}
	return profile.RunFilterPluginsWithNominatedPods(ctx, state, pod, node), false
}
