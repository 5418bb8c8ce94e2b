package v1

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// Complete completes a configuration in which a profile configures the plugin. If the profile does not name the plugin
// under `plugins`, Complete puts the plugin in its place. What the configuration leaves out gets defaults that differ from
// kube-scheduler's own: the name of a single profile is pool-priority-scheduler, the client's limits let all pods of a
// large rollout be bound at once, a standby takes over within 15 seconds, and there is no profiling. Call Complete before
// kube-scheduler sets its own defaults.
func Complete(config *configv1.KubeSchedulerConfiguration) {
	ours := false
	for i := range config.Profiles {
		profile := &config.Profiles[i]
		named := enables(profile)
		configured := slices.ContainsFunc(profile.PluginConfig, func(c configv1.PluginConfig) bool { return c.Name == PluginName })
		if ours = ours || named || configured; configured && !named {
			place(profile)
		}
	}
	if !ours {
		return
	}
	if len(config.Profiles) == 1 && config.Profiles[0].SchedulerName == nil {
		config.Profiles[0].SchedulerName = ptr.To(DefaultInstallation)
	}
	if c := &config.ClientConnection; c.QPS == 0 && c.Burst == 0 {
		c.QPS, c.Burst = 1000, 2000 // kube-scheduler's own 50 stop scheduling when many pods wait
	}
	if e, unset := &config.LeaderElection, (metav1.Duration{}); e.LeaseDuration == unset && e.RenewDeadline == unset && e.RetryPeriod == unset {
		e.LeaseDuration.Duration, e.RenewDeadline.Duration, e.RetryPeriod.Duration = 10*time.Second, 7*time.Second, 500*time.Millisecond
	}
	if config.EnableProfiling == nil {
		config.EnableProfiling = ptr.To(false)
	}
}

// place puts the plugin in its place in the profile. Other plugins stay where they are.
func place(profile *configv1.KubeSchedulerProfile) {
	if profile.Plugins == nil {
		profile.Plugins = &configv1.Plugins{}
	}
	p, ours := profile.Plugins, configv1.Plugin{Name: PluginName}
	disable(&p.MultiPoint, "NodeDeclaredFeatures")            // with 1.36, it delays the queue when many pods wait
	p.MultiPoint.Enabled = append(p.MultiPoint.Enabled, ours) // last, so that its PreFilter runs after all others
	p.Filter.Enabled = slices.Insert(p.Filter.Enabled, 0, ours)
	disable(&p.Filter, "TaintToleration") // the plugin asks it itself, to look past the taints of burst pools
	p.PostFilter.Enabled = slices.Insert(p.PostFilter.Enabled, 0, ours)
	disable(&p.Bind, "DefaultBinder") // the plugin binds, with the order of scale-in
}

// disable disables the plugin, unless the set names it, or disables all plugins.
func disable(set *configv1.PluginSet, name string) {
	if !disables(set, name) && !slices.ContainsFunc(set.Enabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" }) {
		set.Disabled = append(set.Disabled, configv1.Plugin{Name: name})
	}
}
