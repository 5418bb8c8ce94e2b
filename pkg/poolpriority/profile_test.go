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
		}, "must come after all: put it last under multiPoint, and enable neither under preFilter"},
		{"another one under preFilter", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.MultiPoint.Disabled = append(p.MultiPoint.Disabled, schedconfig.Plugin{Name: names.NodePorts})
			p.MultiPoint.Enabled = slices.DeleteFunc(p.MultiPoint.Enabled, func(p schedconfig.Plugin) bool { return p.Name == names.NodePorts })
			p.PreFilter.Enabled = []schedconfig.Plugin{{Name: names.NodePorts}}
			p.Filter.Enabled = append(p.Filter.Enabled, schedconfig.Plugin{Name: names.NodePorts})
		}, "PoolPriority comes before NodePorts among the preFilter plugins"},
		{"not first among the Filters", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Filter.Enabled = nil
		}, "must be first among the filter plugins: add filter: {enabled: [{name: PoolPriority}]}"},
		{"TaintToleration filters too", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Filter.Disabled = nil
		}, "TaintToleration is among the filter plugins, and PoolPriority asks it itself"},
		{"after preemption", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.PostFilter.Enabled = nil
		}, "must be first among the postFilter plugins"},
		{"DefaultBinder binds", func(_ *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Bind.Disabled = nil
		}, "is not the first bind plugin, and pods get their deletion cost as they are bound: add bind: {disabled: [{name: DefaultBinder}]}"},
		{"preferred without its score", func(c *schedconfig.KubeSchedulerConfiguration, p *schedconfig.Plugins) {
			p.Score.Disabled = append(p.Score.Disabled, ours)
			setOrder(c, "Preferred")
		}, "is not among the score plugins"},
		{"an extender that binds", func(c *schedconfig.KubeSchedulerConfiguration, _ *schedconfig.Plugins) {
			c.Extenders = []schedconfig.Extender{{URLPrefix: "http://127.0.0.1:1", BindVerb: "bind"}}
		}, "binds pods, which get no deletion cost then"},
		{"an extender that filters", func(c *schedconfig.KubeSchedulerConfiguration, _ *schedconfig.Plugins) {
			c.Extenders = []schedconfig.Extender{{URLPrefix: "http://127.0.0.1:1", FilterVerb: "filter"}}
		}, "filters nodes after the order was decided"},
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
