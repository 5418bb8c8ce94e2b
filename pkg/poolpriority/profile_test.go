package poolpriority

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/test/must"
)

// TestProfile: where configv1.Judge finds nothing wrong with the plugin's place, kube-scheduler itself puts the plugin there.
func TestProfile(t *testing.T) {
	files := must.Get(filepath.Glob("../apis/config/v1/testdata/config/*.yaml"))(t)
	judged := 0
	for _, file := range append(files, "../apis/config/scheme/testdata/aks-long.yaml") {
		text := string(must.ReadFile(t, file))
		if strings.Contains(text, "# want: ") || strings.Contains(text, "Coscheduling") || strings.Contains(text, "default-scheduler") {
			continue
		}
		judged++
		p := newHarness(t, loadConfig(t, file)).plugin.handle.ListPlugins()
		if find(p.PreFilter, Name) != len(p.PreFilter.Enabled)-1 || find(p.Filter, Name) != 0 || find(p.Filter, names.TaintToleration) >= 0 || find(p.PostFilter, Name) != 0 || find(p.Bind, Name) != 0 {
			t.Errorf("%s: %+v", file, p)
		}
	}
	p := newHarness(t, aks(t)).sched.Profiles[oracleProfile].ListPlugins()
	for point, set := range map[string]schedconfig.PluginSet{"preFilter": p.PreFilter, "filter": p.Filter, "postFilter": p.PostFilter, "bind": p.Bind} {
		for _, plugin := range set.Enabled {
			if points, known := compat.Points(plugin.Name); !known || !slices.Contains(points, point) {
				t.Errorf("%s runs at %s", plugin.Name, point)
			}
		}
	}
	if judged < 10 {
		t.Errorf("%d of %d files were looked at", judged, len(files))
	}
}
