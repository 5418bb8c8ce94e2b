package scheme

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/must"
)

func TestMain(m *testing.M) {
	Register()
	os.Exit(m.Run())
}

// decode reads a configuration as the scheduler does, and returns the plugin's arguments by profile.
func decode(data []byte) (map[string]*configv1.PoolPriorityArgs, error) {
	obj, _, err := schedscheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	found := map[string]*configv1.PoolPriorityArgs{}
	for _, profile := range obj.(*schedconfig.KubeSchedulerConfiguration).Profiles {
		for _, c := range profile.PluginConfig {
			if args, ok := c.Args.(*configv1.PoolPriorityArgs); ok {
				found[profile.SchedulerName] = args
			}
		}
	}
	return found, nil
}

// decodeOurs reads a configuration with Decode, as tools that do not link the scheduler do.
func decodeOurs(data []byte) (map[string]*configv1.PoolPriorityArgs, error) {
	config, err := configv1.Decode(data)
	if err != nil {
		return nil, err
	}
	found := map[string]*configv1.PoolPriorityArgs{}
	for _, profile := range config.Profiles {
		for _, c := range profile.PluginConfig {
			if args, ok := c.Args.Object.(*configv1.PoolPriorityArgs); ok {
				found[*profile.SchedulerName] = args
			}
		}
	}
	return found, nil
}

// TestDecodersAgree compares Decode with the scheduler's own decoder, for every configuration in the repository, valid
// or not. Both refuse it, or return the same arguments.
func TestDecodersAgree(t *testing.T) {
	const root = "../../../../"
	files := map[string]bool{} // whether the file has only the arguments, by the file's name
	for pattern, argsAlone := range map[string]bool{
		"pkg/apis/config/v1/testdata/bad/*.yaml":    true,
		"pkg/apis/config/v1/testdata/config/*.yaml": false,
		"manifests/overlays/*/config.yaml":          false,
		"manifests/examples/*.yaml":                 false,
		"manifests/emergency/kube-scheduler.yaml":   false,
	} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		for _, file := range found {
			files[file] = argsAlone
		}
	}
	refused := 0
	for _, file := range slices.Sorted(maps.Keys(files)) {
		data := must.ReadFile(t, file)
		if files[file] {
			data = configuration("PoolPriority", string(data))
		}
		if agree(t, strings.TrimPrefix(file, root), data) != nil {
			refused++
		}
	}
	if refused == 0 || refused == len(files) {
		t.Errorf("%d of %d files are refused: nothing was compared", refused, len(files))
	}
}

// TestDecodersAgreeOnOtherPlugins: both decoders find errors in the arguments of Kubernetes' own plugins.
func TestDecodersAgreeOnOtherPlugins(t *testing.T) {
	for _, tc := range []struct {
		plugin, args string
		bad          bool
	}{
		{"NodeResourcesFit", "scoringStrategy: {type: MostAllocated}", false},
		{"NodeResourcesFit", "scoringStratagy: {type: MostAllocated}", true},
		{"NodeResourcesFit", "ignoredResources: cpu", true},
		{"PodTopologySpread", "defaultingType: List\ndefaultingType: System", true},
		{"VolumeBinding", "bindTimeoutSeconds: soon", true},
		{"PoolPriority", "kind: NodeAffinityArgs\napiVersion: kubescheduler.config.k8s.io/v1", true},
		{"PoolPriority", "kind: PoolPriorityArgs\napiVersion: kubescheduler.config.k8s.io/v1", false},
		{"PoolPriority", "kind: PoolPriorityArgs\napiVersion: kubescheduler.config.k8s.io/v1\npoools: []", true},
		{"PoolPriority", "", false}, // decoded without an error, but not valid
		{"Elsewhere", "what: ever", false},
	} {
		if err := agree(t, tc.plugin+" with "+tc.args, configuration(tc.plugin, tc.args)); (err != nil) != tc.bad {
			t.Errorf("%s with %s: %v, want an error: %t", tc.plugin, tc.args, err, tc.bad)
		}
	}
}

// TestDecodersAgreeOnNothing decodes profiles that name the plugin without arguments.
func TestDecodersAgreeOnNothing(t *testing.T) {
	for _, profile := range []string{"{pluginConfig: [{name: PoolPriority}]}", "{plugins: {score: {enabled: [{name: PoolPriority}]}}}",
		"{plugins: {score: {disabled: [{name: PoolPriority}]}}}", "{}"} {
		_ = agree(t, profile, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: ["+profile+"]"))
	}
}

// TestSameTypes: Decode knows the same types as the scheduler's decoder.
func TestSameTypes(t *testing.T) {
	for name := range schedscheme.Scheme.KnownTypes(schedconfigv1.SchemeGroupVersion) {
		plugin, ok := strings.CutSuffix(name, "Args")
		if !ok {
			continue
		}
		if _, err := configv1.Decode(configuration(plugin, "notAField: 1")); err == nil {
			t.Errorf("the arguments of %s are not decoded", plugin)
		}
	}
}

// configuration returns a KubeSchedulerConfiguration with the plugin's arguments.
func configuration(plugin, args string) []byte {
	return fmt.Appendf(nil, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- pluginConfig:\n  - name: %s\n    args:\n      %s\n",
		plugin, strings.ReplaceAll(strings.TrimSpace(args), "\n", "\n      "))
}

// agree compares the results of the two decoders, and returns the error of the scheduler's decoder.
func agree(t *testing.T, name string, data []byte) error {
	t.Helper()
	want, wantErr := decode(data)
	got, err := decodeOurs(data)
	if (err == nil) != (wantErr == nil) { // ours names fields that the scheduler's does not
		t.Errorf("%s: our decoder says\n  %v\nand the scheduler's\n  %v", name, err, wantErr)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreTypes(metav1.TypeMeta{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: arguments (-the scheduler's,+ours):\n%s", name, diff)
	}
	return wantErr
}

// whole reads a configuration as the scheduler does.
func whole(t *testing.T, data []byte) *schedconfig.KubeSchedulerConfiguration {
	t.Helper()
	obj, _, err := schedscheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	must.NoError(t, err)
	return obj.(*schedconfig.KubeSchedulerConfiguration)
}

// TestShortForm: a short configuration is the same as its long form, and as what the scheduler writes with
// --write-config-to.
func TestShortForm(t *testing.T) {
	short, long := must.ReadFile(t, "../../../../manifests/overlays/aks/config.yaml"), must.ReadFile(t, "testdata/aks-long.yaml")
	if diff := cmp.Diff(whole(t, long), whole(t, short)); diff != "" {
		t.Errorf("(-long,+short):\n%s", diff)
	}
	minimal := strings.NewReplacer("leaderElection: {resourceName: pool-priority-scheduler}\n", "", "- schedulerName: pool-priority-scheduler\n  pluginConfig:", "- pluginConfig:").Replace(string(short))
	want := whole(t, short)
	want.LeaderElection.ResourceName = "kube-scheduler" // the command sets it
	if diff := cmp.Diff(want, whole(t, []byte(minimal))); diff != "" || minimal == string(short) {
		t.Errorf("without names (-named,+got):\n%s", diff)
	}
	files := must.Get(filepath.Glob("../../../../manifests/examples/*.yaml"))(t)
	for _, file := range append(files, "../../../../manifests/overlays/karpenter/config.yaml", "../v1/testdata/config/no-tolerations.yaml") {
		config := whole(t, must.ReadFile(t, file))
		info, _ := runtime.SerializerInfoForMediaType(schedscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
		out := must.Get(runtime.Encode(schedscheme.Codecs.EncoderForVersion(info.Serializer, schedconfigv1.SchemeGroupVersion), config))(t)
		if diff := cmp.Diff(config, whole(t, out), cmpopts.IgnoreTypes(metav1.TypeMeta{})); diff != "" {
			t.Errorf("%s (-read,+written and read):\n%s", file, diff)
		}
	}
}

// TestOthersStay: the plugin is put beside other plugins, and values in the file hold.
func TestOthersStay(t *testing.T) {
	config := whole(t, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 5s}
clientConnection: {qps: 50}
enableProfiling: true
profiles:
- schedulerName: mine
  plugins:
    multiPoint: {enabled: [{name: Coscheduling}, {name: NodeDeclaredFeatures}]}
    filter: {enabled: [{name: A}], disabled: [{name: B}]}
    bind: {disabled: [{name: "*"}]}
  pluginConfig: [{name: PoolPriority, args: {pools: []}}]
- schedulerName: default-scheduler
`))
	if e := config.LeaderElection; e.LeaseDuration.Duration != time.Minute || config.ClientConnection.QPS != 50 || config.ClientConnection.Burst != 100 || !config.EnableProfiling {
		t.Errorf("values of the file do not hold: %+v, %+v, %v", e, config.ClientConnection, config.EnableProfiling)
	}
	enabled := func(set schedconfig.PluginSet) (names []string) {
		for _, p := range set.Enabled {
			names = append(names, p.Name)
		}
		return names
	}
	p := config.Profiles[0].Plugins
	if all := enabled(p.MultiPoint); !slices.Equal(all[len(all)-3:], []string{"Coscheduling", "NodeDeclaredFeatures", "PoolPriority"}) {
		t.Errorf("under multiPoint are %v", all)
	}
	if got := enabled(p.Filter); !slices.Equal(got, []string{"PoolPriority", "A"}) || len(p.Filter.Disabled) != 2 || len(p.Bind.Disabled) != 1 {
		t.Errorf("filters %v, disabled %v; bind %v", got, p.Filter.Disabled, p.Bind.Disabled)
	}
	if other := config.Profiles[1].Plugins; slices.Contains(enabled(other.MultiPoint), "PoolPriority") || len(other.Bind.Disabled) > 0 {
		t.Errorf("another profile has changed: %+v", other)
	}
}
