package poolpriority

import (
	"errors"
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// checkProfile returns what is wrong with the plugin's place among the other plugins of the profile.
func (pl *PoolPriority) checkProfile() error {
	plugins := pl.handle.ListPlugins()
	c := complaints{profile: pl.handle.ProfileName()}
	pl.checkPreFilter(plugins, &c)
	if i := find(plugins.Filter, Name); i != 0 {
		c.add("%s must be first among the filter plugins: add filter: {enabled: [{name: %s}]}", Name, Name)
	}
	if find(plugins.Filter, names.TaintToleration) >= 0 && pl.pools.HasBurst() {
		c.add("%s is among the filter plugins, and %s asks it itself: add filter: {disabled: [{name: %s}]}",
			names.TaintToleration, Name, names.TaintToleration)
	}
	if i := find(plugins.PostFilter, Name); i != 0 {
		c.add("%s must be first among the postFilter plugins: add postFilter: {enabled: [{name: %s}]}", Name, Name)
	}
	if i := find(plugins.Score, Name); i < 0 && !pl.strict {
		c.add("%s is not among the score plugins, where order: %s has its effect: enable it under multiPoint", Name, configv1.OrderPreferred)
	}
	if i := find(plugins.Bind, Name); i != 0 && pl.deletionCost {
		c.add("%s is not the first bind plugin, and pods get their deletion cost as they are bound: add bind: {disabled: [{name: %s}]} or set scaleIn: {podDeletionCost: false}",
			Name, names.DefaultBinder)
	}
	pl.checkExtenders(pl.handle.Extenders(), &c)
	return errors.Join(c.errs...)
}

// checkPreFilter complains if a preFilter plugin comes after ours. The framework runs those first that are enabled both under multiPoint
// and under preFilter, then those under multiPoint in their order, then those under preFilter alone.
func (pl *PoolPriority) checkPreFilter(plugins *schedconfig.Plugins, c *complaints) {
	i, n := find(plugins.PreFilter, Name), len(plugins.PreFilter.Enabled)
	switch {
	case i < 0:
		c.add("%s is not among the preFilter plugins: enable it under multiPoint", Name)
	case i != n-1:
		c.add("%s comes before %s among the preFilter plugins and must come after all: put it last under multiPoint, and enable neither under preFilter, which does not keep to that order",
			Name, plugins.PreFilter.Enabled[n-1].Name)
	}
}

func (pl *PoolPriority) checkExtenders(extenders []fwk.Extender, c *complaints) {
	for _, extender := range extenders {
		if extender.IsBinder() && pl.deletionCost {
			c.add("extender %q binds pods, which get no deletion cost then: remove its bindVerb or set scaleIn: {podDeletionCost: false}", extender.Name())
		}
		if extender.IsFilter() && pl.strict {
			c.add("extender %q filters nodes after the order was decided, which cannot be kept then: remove it or set order: %s",
				extender.Name(), configv1.OrderPreferred)
		}
	}
}

// complaints collects what is wrong with a profile.
type complaints struct {
	profile string
	errs    []error
}

func (c *complaints) add(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("profile %q: "+format, append([]any{c.profile}, args...)...))
}

func find(set schedconfig.PluginSet, name string) int {
	return slices.IndexFunc(set.Enabled, func(p schedconfig.Plugin) bool { return p.Name == name })
}
