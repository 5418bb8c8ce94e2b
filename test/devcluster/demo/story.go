package demo

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
)

// storyWorkload is the workload that is drawn.
const storyWorkload = "web"

//go:embed story.yaml
var storyFile []byte

// story is a load that is played in several runs. story.yaml describes the fields.
type story struct {
	Pools []devcluster.Pool
	Runs  []struct{ Name, Burst string }
	Acts  []struct {
		Name    string
		Scale   map[string]int
		Seconds float64
	}
	Deployment string
}

// RunStory plays the same load without and with headroom, Overflow and Return, draws both runs in one picture, and prints
// what each saved.
func RunStory(ctx context.Context, o Options) error {
	var s story
	if err := yaml.UnmarshalStrict(storyFile, &s); err != nil {
		return fmt.Errorf("reading the story: %w", err)
	}
	timeline := picture.Timeline{
		Title: "1 → 14 → 16 replicas of web beside other pods, without and with headroom, Overflow and Return",
		Note:  "A run of make demo-story: a real control plane, a simulated autoscaler, VMs that boot in 20 s",
	}
	var costs [][]cost
	for i, run := range s.Runs {
		config, err := s.config(o, i)
		if err != nil {
			return err
		}
		e := experiment{Title: run.Name, Name: run.Name, Load: storyWorkload, Pools: s.Pools, Want: []int{}, config: config, rights: filepath.Join(filepath.Dir(config), "rights")}
		var times []float64
		seen, err := e.onCluster(ctx, o, fmt.Sprint("story-", i+1), func(ctx context.Context, t *trial) (err error) {
			times, err = s.play(ctx, t)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", run.Name, err)
		}
		seen.Wrong = []picture.Placement{} // the referee does not know Overflow
		timeline.Runs = append(timeline.Runs, seen)
		costs = append(costs, costsOf(seen.Steps, append(times, seen.Seconds)))
	}
	fmt.Fprintf(o.Out, "\n%-42s  %-28s  %s\n%-42s  %-28s  %s\n", "", "waiting, pod-seconds", "on the virtual node, pod-seconds", "", "without, with, saved", "without, with, saved")
	for i, act := range s.Acts[1:] {
		without, with := costs[0][i], costs[1][i]
		if act.Name == "" {
			continue
		}
		fmt.Fprintf(o.Out, "%-42s  %7.0f %6.0f %6.0f         %7.0f %6.0f %6.0f\n", act.Name, without.waiting, with.waiting, without.waiting-with.waiting, without.virtual, with.virtual, without.virtual-with.virtual)
	}
	return write(timeline, o, "story.json", "story.svg")
}

// config writes the configuration of the run with index i, and a kustomization of the rights that it needs.
func (s *story) config(o Options, i int) (string, error) {
	data, err := os.ReadFile(filepath.Join(o.Manifests, "overlays/aks/config.yaml"))
	if err != nil {
		return "", fmt.Errorf("reading the configuration: %w", err)
	}
	const burst, indent = "        burst:\n", "          "
	added := indent + strings.ReplaceAll(strings.TrimSpace(s.Runs[i].Burst), "\n", "\n"+indent) + "\n"
	dir := filepath.Join(o.Dir, fmt.Sprint("story-config-", i+1))
	manifests, err := filepath.Abs(o.Manifests)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, "rights"), 0o755); err != nil { //nolint:gosec // it has no secrets
		return "", fmt.Errorf("making the directory of the configuration: %w", err)
	}
	relative := func(path string) string {
		r, _ := filepath.Rel(filepath.Join(dir, "rights"), filepath.Join(manifests, path)) // both are absolute
		return r
	}
	for name, text := range map[string]string{
		"config.yaml":               strings.Replace(string(data), burst, burst+added, 1),
		"rights/kustomization.yaml": fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n", relative("rbac"), relative("components/return")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // it has no secrets
			return "", fmt.Errorf("writing the configuration: %w", err)
		}
	}
	return filepath.Join(dir, "config.yaml"), nil
}

// play plays the acts, and returns when each act but the first began, in seconds.
func (s *story) play(ctx context.Context, t *trial) ([]float64, error) {
	for name, priority := range map[string]int32{"web": 0, "batch": 0, "placeholder": -10} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: priority}
		if _, err := t.cluster.Client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("making the priority %s: %w", name, err)
		}
	}
	var times []float64
	for i, act := range s.Acts {
		if i == 1 {
			t.start, t.steps, t.line = time.Now(), nil, ""
		}
		if i > 0 {
			times = append(times, t.seconds(time.Now()))
			fmt.Fprintf(t.Out, "%s", strings.TrimPrefix(fmt.Sprintf("        %s\n", act.Name), "        \n"))
		}
		for _, name := range slices.Sorted(maps.Keys(act.Scale)) {
			manifest := strings.ReplaceAll(strings.Replace(s.Deployment, "replicas: 1", fmt.Sprint("replicas: ", act.Scale[name]), 1), storyWorkload, name)
			_, err := t.cluster.Client.AppsV1().Deployments(metav1.NamespaceDefault).Patch(ctx, name, types.ApplyPatchType, []byte(manifest), metav1.PatchOptions{FieldManager: "demo"})
			if err != nil {
				return nil, fmt.Errorf("scaling %s: %w", name, err)
			}
			if name == t.Load {
				t.asked = act.Scale[name]
			}
		}
		err := wait.PollUntilContextTimeout(ctx, tick, time.Duration(act.Seconds*float64(time.Second)), false, func(context.Context) (bool, error) {
			t.look()
			return false, t.components[0].Failed()
		})
		if err != nil && !wait.Interrupted(err) || ctx.Err() != nil {
			return nil, err
		}
	}
	return times, nil
}

// cost is for how long pods waited, and for how long they were on the virtual node, in pod-seconds.
type cost struct{ waiting, virtual float64 }

// costsOf returns the cost of each span between two times.
func costsOf(steps []picture.Step, times []float64) []cost {
	costs := make([]cost, len(times)-1)
	for i, step := range steps {
		until := times[len(times)-1]
		if i+1 < len(steps) {
			until = steps[i+1].Seconds
		}
		for k := range costs {
			seconds := max(0, min(until, times[k+1])-max(step.Seconds, times[k]))
			costs[k].waiting += seconds * float64(step.Pending)
			costs[k].virtual += seconds * float64(step.Pods[len(step.Pods)-1])
		}
	}
	return costs
}
