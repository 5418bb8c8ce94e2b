package v1

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	componentv1 "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/compat"
)

const defaultBinder, taintToleration = "DefaultBinder", "TaintToleration"

// Judge returns the profile that configures the plugin, or nil if no profile does. The error lists everything for which
// the scheduler does not start, as far as it can be told without Kubernetes' own packages. config is from Decode.
func Judge(config *configv1.KubeSchedulerConfiguration) (*configv1.KubeSchedulerProfile, error) {
	var errs []error
	complain := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	var ours []int
	var names []string
	seen, profiles := map[string]bool{}, field.NewPath("profiles")
	for i := range config.Profiles {
		profile, path := &config.Profiles[i], profiles.Index(i)
		for _, set := range setsOf(profile) {
			for k, plugin := range set.Enabled {
				if _, known := compat.Points(plugin.Name); !known && plugin.Name != PluginName {
					complain("%s: there is no plugin %q in the build for Kubernetes %s", path.Child("plugins"), plugin.Name, compat.Minor)
				}
				if slices.ContainsFunc(set.Enabled[:k], func(p configv1.Plugin) bool { return p.Name == plugin.Name }) {
					complain("%s: %s is enabled twice at one extension point", path.Child("plugins"), plugin.Name)
				}
			}
		}
		if name := nameOf(profile); name == "" && len(config.Profiles) > 1 {
			errs = append(errs, field.Required(path.Child("schedulerName"), "with several profiles, each profile needs a schedulerName"))
		} else if seen[name] {
			errs = append(errs, field.Duplicate(path.Child("schedulerName"), name))
		}
		seen[nameOf(profile)] = true
		if argsOf(profile) != nil {
			ours, names = append(ours, i), append(names, nameOf(profile))
		}
	}
	if len(ours) > 1 { // they would overwrite each other's published state, and the controller supports one list of pools
		complain("the profiles %s configure the plugin %s, and only one may: run a scheduler for each list of pools", strings.Join(names, ", "), PluginName)
	}
	if len(ours) != 1 {
		return nil, errors.Join(errs...)
	}
	profile, path := &config.Profiles[ours[0]], profiles.Index(ours[0])
	args := argsOf(profile)
	for _, invalid := range Validate(args) {
		complain("profile %q: %w", nameOf(profile), invalid)
	}
	lease := &config.LeaderElection
	if _, invalid := InstallationOf(lease.ResourceName); invalid != nil {
		errs = append(errs, invalid)
	}
	times := config.LeaderElection
	componentv1.RecommendedDefaultLeaderElectionConfiguration(&times)
	// The factor is leaderelection.JitterFactor of client-go.
	if every := times.RetryPeriod.Duration; *times.LeaderElect && (every <= 0 || times.RenewDeadline.Duration <= every*6/5 || times.LeaseDuration.Duration <= times.RenewDeadline.Duration) {
		complain("leaderElection: leaseDuration (%s) must be more than renewDeadline (%s), and that more than 1.2 times retryPeriod (%s)", times.LeaseDuration.Duration, times.RenewDeadline.Duration, every)
	}
	stock, replaces := lease.ResourceName == stockLease && lease.ResourceNamespace == metav1.NamespaceSystem, nameOf(profile) == corev1.DefaultSchedulerName
	if stock && !replaces && ptr.Deref(lease.LeaderElect, true) {
		errs = append(errs, ErrStockLease)
	} else if replaces && !stock {
		errs = append(errs, field.Invalid(path.Child("schedulerName"), corev1.DefaultSchedulerName,
			"the cluster's default scheduler places these pods, too: use another name, or replace it, with leaderElection: {resourceNamespace: kube-system, resourceName: kube-scheduler}"))
	}
	for _, complaint := range misplaced(profile, args) {
		complain("profile %q: %s", nameOf(profile), complaint)
	}
	for _, extender := range config.Extenders {
		if extender.BindVerb != "" && args.ScaleIn.DeletionCosts != CostsNone {
			complain("extender %q binds pods without a deletion cost: remove its bindVerb or set scaleIn: {deletionCosts: None}", extender.URLPrefix)
		}
		if extender.FilterVerb != "" && args.Order == OrderStrict {
			complain("extender %q filters nodes after the best pool is chosen, so the order cannot be strict: remove the extender or set order: %s", extender.URLPrefix, OrderPreferred)
		}
	}
	return profile, errors.Join(errs...)
}

// misplaced returns what is wrong with the plugin's place in the profile.
func misplaced(profile *configv1.KubeSchedulerProfile, args *PoolPriorityArgs) (complaints []string) {
	p := ptr.Deref(profile.Plugins, configv1.Plugins{})
	complain := func(format string, a ...any) { complaints = append(complaints, fmt.Sprintf(format, a...)) }
	first := func(set configv1.PluginSet, point string) bool {
		names := runs(&p, set, point)
		return len(names) > 0 && names[0] == PluginName
	}
	switch preFilters := runs(&p, p.PreFilter, "preFilter"); {
	case !slices.Contains(preFilters, PluginName):
		complain("%s is not among the preFilter plugins: enable it under multiPoint", PluginName)
	case preFilters[len(preFilters)-1] != PluginName:
		complain("%s must be the last preFilter plugin, but %s comes after it: put %s last under multiPoint, and do not list the two plugins under preFilter, because a preFilter entry changes the order",
			PluginName, preFilters[len(preFilters)-1], PluginName)
	}
	if !first(p.Filter, "filter") {
		complain("%s must be first among the filter plugins: add filter: {enabled: [{name: %s}]}", PluginName, PluginName)
	}
	if slices.Contains(runs(&p, p.Filter, "filter"), taintToleration) && slices.ContainsFunc(args.Pools, func(pool Pool) bool { return pool.Burst != nil }) {
		complain("%s must not be a filter plugin, because %s calls it: add filter: {disabled: [{name: %s}]}", taintToleration, PluginName, taintToleration)
	}
	if !first(p.PostFilter, "postFilter") {
		complain("%s must be first among the postFilter plugins: add postFilter: {enabled: [{name: %s}]}", PluginName, PluginName)
	}
	if args.Order == OrderPreferred && !slices.Contains(runs(&p, p.Score, "score"), PluginName) {
		complain("%s must be a score plugin for order: %s: enable it under multiPoint", PluginName, OrderPreferred)
	}
	if args.ScaleIn.DeletionCosts != CostsNone && !first(p.Bind, "bind") {
		complain("%s must be the first bind plugin, because it sets deletion costs: add bind: {disabled: [{name: %s}]} or set scaleIn: {deletionCosts: None}", PluginName, defaultBinder)
	}
	return complaints
}

// runs returns the plugins in the order in which kube-scheduler calls them at the extension point with the set, as
// expandMultiPointPlugins in pkg/scheduler/framework/runtime has it: first those that are also under multiPoint, then the
// others under multiPoint, then the rest of the set.
func runs(p *configv1.Plugins, set configv1.PluginSet, point string) []string {
	var multi []string
	for _, name := range slices.Sorted(maps.Keys(compat.InTree)) {
		if slices.Contains(compat.InTree[name], point) && !disables(&p.MultiPoint, name) {
			multi = append(multi, name)
		}
	}
	for _, plugin := range p.MultiPoint.Enabled {
		points, _ := compat.Points(plugin.Name)
		if !slices.Contains(multi, plugin.Name) && (plugin.Name == PluginName || slices.Contains(points, point)) {
			multi = append(multi, plugin.Name)
		}
	}
	multi = slices.DeleteFunc(multi, func(name string) bool { return disables(&set, name) })
	var both, rest []string
	for _, plugin := range set.Enabled {
		if i := slices.Index(multi, plugin.Name); i >= 0 {
			both, multi = append(both, plugin.Name), slices.Delete(multi, i, i+1)
		} else {
			rest = append(rest, plugin.Name)
		}
	}
	return slices.Concat(both, multi, rest)
}

func disables(set *configv1.PluginSet, name string) bool {
	return slices.ContainsFunc(set.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
}
