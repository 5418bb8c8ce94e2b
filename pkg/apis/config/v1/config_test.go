package v1

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

func TestMain(m *testing.M) {
	if err := Register(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// decode reads arguments as the scheduler does, out of a KubeSchedulerConfiguration.
func decodeArgs(args string) (*PoolPriorityArgs, error) {
	file := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- pluginConfig:\n  - name: PoolPriority\n    args:\n" +
		"      " + strings.ReplaceAll(strings.TrimSpace(args), "\n", "\n      ") + "\n"
	obj, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(file), nil, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range obj.(*config.KubeSchedulerConfiguration).Profiles[0].PluginConfig {
		if c.Name == "PoolPriority" {
			return c.Args.(*PoolPriorityArgs), nil
		}
	}
	return nil, nil
}

func TestDefaults(t *testing.T) {
	args, err := decodeArgs("pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]")
	if err != nil {
		t.Fatal(err)
	}
	c := args.Capacity
	if args.Order != OrderStrict || c.ClusterAutoscalerStatus != "kube-system/cluster-autoscaler-status" ||
		c.StaleAfter.Duration != 3*time.Minute || c.UnknownGrace.Duration != 15*time.Minute || c.ProvisionGrace.Duration != 15*time.Minute ||
		c.BackoffGrace.Duration != 2*time.Minute || c.DeclineGrace.Duration != 5*time.Minute {
		t.Errorf("defaulted arguments: %+v, %+v", args, c)
	}
	if errs := Validate(args); len(errs) > 0 {
		t.Errorf("Validate() = %v", errs)
	}
}

func TestZeroGraceIsKept(t *testing.T) {
	args, err := decodeArgs("pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]\ncapacity: {unknownGrace: 0s}")
	if err != nil {
		t.Fatal(err)
	}
	if args.Capacity.UnknownGrace.Duration != 0 {
		t.Errorf("unknownGrace: 0s became %v", args.Capacity.UnknownGrace)
	}
}

func TestRoundTrip(t *testing.T) {
	args, err := decodeArgs("pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}, clusterAutoscaler: {}}]")
	if err != nil {
		t.Fatal(err)
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	out, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion), args)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: PoolPriorityArgs", "order: Strict", "clusterAutoscaler: {}", "unknownGrace: 15m0s"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in what is written out:\n%s", want, out)
		}
	}
}

// TestBadArguments reads the files in testdata. Their comments name the messages that must come: all of them at once.
func TestBadArguments(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var said string
			count := 1
			if args, err := decodeArgs(string(data)); err != nil {
				said = err.Error()
			} else {
				errs := Validate(args)
				count = len(errs)
				for _, err := range errs {
					said += err.Error() + "\n"
				}
			}
			wanted := 0
			for _, line := range strings.Split(string(data), "\n") {
				want, ok := strings.CutPrefix(line, "# want: ")
				if !ok {
					continue
				}
				wanted++
				if !strings.Contains(said, want) {
					t.Errorf("no error with %q in:\n%s", want, said)
				}
			}
			if wanted == 0 || wanted != count {
				t.Errorf("%d errors, %d wanted:\n%s", count, wanted, said)
			}
		})
	}
}
