package command

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"poolpriority.dev/scheduler/pkg/apis/config/scheme"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/compat/outoftree"
	"poolpriority.dev/scheduler/test/must"
)

// TestRefusals: what is wrong with the configuration's file is said before anything talks to an API server: there is
// none.
func TestRefusals(t *testing.T) {
	const empty = "empty"
	const args = "pluginConfig: [{name: PoolPriority, args: {pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]}}]"
	for _, tc := range []struct{ name, file, want string }{
		{"two profiles", "profiles: [{schedulerName: a, " + args + "}, {schedulerName: b, " + args + "}]",
			"the profiles a, b configure the plugin PoolPriority, and only one may: run a scheduler for each list of pools"},
		{"an unknown field", "profiles: [{schedulerName: a, " + strings.Replace(args, "nodeSelector", "nodeSelecter", 1) + "}]", `unknown field "pools[0].nodeSelecter"`},
		{"two profiles of one name", "profiles: [{schedulerName: a, " + args + "}, {schedulerName: a}]", "profiles[1].schedulerName: Duplicate value"},
		{"no file", "", "no such file"},
		{"a pod without the annotation", empty, "config.yaml: the configuration is empty: the pod has no annotation poolpriority.dev/config"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := options.NewOptions()
			opts.SecureServing.BindPort = 0
			opts.ConfigFile = filepath.Join(t.TempDir(), "config.yaml")
			if tc.file != "" {
				text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + tc.file
				if tc.file == empty {
					text = ""
				}
				must.NoError(t, os.WriteFile(opts.ConfigFile, []byte(text), 0o600))
			}
			err := run(t.Context(), opts, opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ended with %v, want %q", err, tc.want)
			}
		})
	}
}

// TestVersion: --version prints ours and ends.
func TestVersion(t *testing.T) {
	out := &bytes.Buffer{}
	command := New()
	command.SetOut(out)
	command.SetArgs([]string{"--version"})
	if err := command.Execute(); err != nil || !strings.HasPrefix(out.String(), "pool-priority-scheduler version ") {
		t.Errorf("printed %q, %v", out, err)
	}
}

// TestPlaceLease: the lease is in the pod's namespace and has our name, unless the file or a flag says otherwise.
func TestPlaceLease(t *testing.T) {
	const ours = "pluginConfig: [{name: PoolPriority, args: {pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]}}]"
	for _, tc := range []struct {
		name, leaderElection, profile string
		flags                         []string
		want                          string
	}{
		{name: "says nothing", profile: ours, want: "mine/pool-priority-scheduler"},
		{name: "names it", leaderElection: "resourceName: other", profile: ours, want: "mine/other"},
		{name: "says where", leaderElection: "resourceNamespace: other", profile: ours, want: "other/pool-priority-scheduler"},
		{name: "a flag goes before the file", leaderElection: "resourceNamespace: other", profile: ours, flags: []string{"--leader-elect-resource-namespace=flagged"}, want: "flagged/pool-priority-scheduler"},
		{name: "flags", profile: ours, flags: []string{"--leader-elect-resource-namespace=flagged", "--leader-elect-resource-name=lease"}, want: "flagged/lease"},
		{name: "another scheduler", profile: "schedulerName: stock", want: "kube-system/kube-scheduler"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", "mine")
			opts := options.NewOptions()
			must.NoError(t, opts.Flags.FlagSet("leader election").Parse(tc.flags))
			opts.ConfigFile = filepath.Join(t.TempDir(), "config.yaml")
			text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {" + tc.leaderElection + "}\nprofiles: [{" + tc.profile + "}]\n"
			must.NoError(t, os.WriteFile(opts.ConfigFile, []byte(text), 0o600))
			must.Do(t)(readConfig(opts))
			scheme.Register()
			config := must.Get(options.LoadConfigFromFile(klog.Background(), opts.ConfigFile))(t)
			opts.ApplyLeaderElectionTo(config)
			if got := config.LeaderElection.ResourceNamespace + "/" + config.LeaderElection.ResourceName; got != tc.want {
				t.Errorf("the lease is %s, want %s", got, tc.want)
			}
		})
	}
}

// TestPlugins: the lists of plugins have the names of those that are built in.
func TestPlugins(t *testing.T) {
	inTree := slices.Sorted(maps.Keys(plugins.NewInTreeRegistry()))
	if want := slices.Sorted(maps.Keys(compat.InTree)); !slices.Equal(inTree, want) {
		t.Errorf("in tree are %v, want %v", inTree, want)
	}
	others := frameworkruntime.Registry{}
	for _, add := range outoftree.Plugins() {
		must.NoError(t, add(others))
	}
	if names, want := slices.Sorted(maps.Keys(others)), slices.Sorted(maps.Keys(compat.OutOfTree)); !slices.Equal(names, want) {
		t.Errorf("of other projects are %v, want %v", names, want)
	}
}
