package poolpriority

import (
	"slices"
	"strings"
	"testing"

	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// TestProfile starts schedulers whose profile puts the plugin where it cannot do its work.
func TestProfile(t *testing.T) {
	ours := schedconfig.Plugin{Name: Name}
	for _, tc := range []struct {
		name   string
		change func(*schedconfig.KubeSchedulerConfiguration, *schedconfig.Plugins)
		want   string // "" starts
	}{
		{"as shipped", func(*schedconfig.KubeSchedulerConfiguration, *schedconfig.Plugins) {}, ""},
		{"not last among the PreFilters", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.PreFilter.Enabled = []schedconfig.Plugin{ours}
		}, "runs after it: put PoolPriority last under multiPoint, and do not list the two plugins under preFilter"},
		{"another one under preFilter", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.MultiPoint.Disabled = append(p.MultiPoint.Disabled, schedconfig.Plugin{Name: names.NodePorts})
			p.MultiPoint.Enabled = slices.DeleteFunc(p.MultiPoint.Enabled, func(p schedconfig.Plugin) bool { return p.Name == names.NodePorts })
			p.PreFilter.Enabled = []schedconfig.Plugin{{Name: names.NodePorts}}
			p.Filter.Enabled = append(p.Filter.Enabled, schedconfig.Plugin{Name: names.NodePorts})
		}, "PoolPriority must be the last preFilter plugin, but NodePorts runs after it"},
		{"not first among the Filters", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Filter.Enabled = nil
		}, "must be first among the filter plugins: add filter: {enabled: [{name: PoolPriority}]}"},
		{"TaintToleration filters too", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Filter.Disabled = nil
		}, "TaintToleration must not be a filter plugin, because PoolPriority calls it"},
		{"after preemption", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.PostFilter.Enabled = nil
		}, "must be first among the postFilter plugins"},
		{"DefaultBinder binds", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Bind.Disabled = nil
		}, "must be the first bind plugin, because it sets deletion costs: add bind: {disabled: [{name: DefaultBinder}]}"},
		{"preferred without its score", func(c *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Score.Disabled = append(p.Score.Disabled, ours)
			pluginArgs(c).Order = "Preferred"
		}, "must be a score plugin for order: Preferred"},
		{"an extender that binds", func(c *schedconfig.KubeSchedulerConfiguration, _ *schedconfig.Plugins) {
			c.Extenders = []schedconfig.Extender{{URLPrefix: "http://127.0.0.1:1", BindVerb: "bind"}}
		}, "binds pods without a deletion cost"},
		{"an extender that filters", func(c *schedconfig.KubeSchedulerConfiguration, _ *schedconfig.Plugins) {
			c.Extenders = []schedconfig.Extender{{URLPrefix: "http://127.0.0.1:1", FilterVerb: "filter"}}
		}, "filters nodes after the best pool is chosen"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := aks(t)
			tc.change(cfg, cfg.Profiles[0].Plugins)
			_, err := tryHarness(t, cfg)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("did not start: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("started with %v, want an error with %q", err, tc.want)
			}
		})
	}
}
