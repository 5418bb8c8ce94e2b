package poolpriority

import (
	"errors"
	"fmt"
	"slices"

	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// checkProfile returns an error that lists every setting of the profile with which the plugin cannot work.
func (pl *PoolPriority) checkProfile() error {
	plugins := pl.handle.ListPlugins()
	var errs []error
	complain := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("profile %q: %s", pl.handle.ProfileName(), fmt.Sprintf(format, args...)))
	}
	// First, the framework runs the preFilter plugins that are enabled under both multiPoint and preFilter. Then it
	// runs the other plugins under multiPoint, in their order, and last the plugins that are enabled only under
	// preFilter.
	switch i, n := find(plugins.PreFilter, Name), len(plugins.PreFilter.Enabled); {
	case i < 0:
		complain("%s is not among the preFilter plugins: enable it under multiPoint", Name)
	case i != n-1:
		complain("%s must be the last preFilter plugin, but %s runs after it: put %s last under multiPoint, and do not list the two plugins under preFilter, because a preFilter entry changes the order",
			Name, plugins.PreFilter.Enabled[n-1].Name, Name)
	}
	if find(plugins.Filter, Name) != 0 {
		complain("%s must be first among the filter plugins: add filter: {enabled: [{name: %s}]}", Name, Name)
	}
	if find(plugins.Filter, names.TaintToleration) >= 0 && pl.pools.HasBurst() {
		complain("%s must not be a filter plugin, because %s calls it: add filter: {disabled: [{name: %s}]}",
			names.TaintToleration, Name, names.TaintToleration)
	}
	if find(plugins.PostFilter, Name) != 0 {
		complain("%s must be first among the postFilter plugins: add postFilter: {enabled: [{name: %s}]}", Name, Name)
	}
	if find(plugins.Score, Name) < 0 && !pl.strict {
		complain("%s must be a score plugin for order: %s: enable it under multiPoint", Name, configv1.OrderPreferred)
	}
	if find(plugins.Bind, Name) != 0 && pl.deletionCost {
		complain("%s must be the first bind plugin, because it sets deletion costs: add bind: {disabled: [{name: %s}]} or set scaleIn: {podDeletionCost: false}",
			Name, names.DefaultBinder)
	}
	for _, extender := range pl.handle.Extenders() {
		if extender.IsBinder() && pl.deletionCost {
			complain("extender %q binds pods without a deletion cost: remove its bindVerb or set scaleIn: {podDeletionCost: false}", extender.Name())
		}
		if extender.IsFilter() && pl.strict {
			complain("extender %q filters nodes after the best pool is chosen, so the order cannot be strict: remove the extender or set order: %s",
				extender.Name(), configv1.OrderPreferred)
		}
	}
	return errors.Join(errs...)
}

func find(set schedconfig.PluginSet, name string) int {
	return slices.IndexFunc(set.Enabled, func(p schedconfig.Plugin) bool { return p.Name == name })
}
