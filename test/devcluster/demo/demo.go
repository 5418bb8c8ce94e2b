// Package demo plays experiments on the embedded cluster with the scheduler binary, its shipped configuration and its
// shipped rights, and judges what the scheduler did. One load is played once more without it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
	"poolpriority.dev/scheduler/test/devcluster/referee"
)

// TimelineFile and PictureFile are what Run writes: all that was seen, and the first load with and without us.
const TimelineFile, PictureFile = "demo.json", "demo.svg"

// Options say where the demo finds things.
type Options struct {
	// Dir is where the clusters keep their files.
	Dir string
	// BinDir has tools/ and pool-priority-scheduler.
	BinDir string
	// Manifests is the directory of the shipped manifests.
	Manifests string
	// Pictures is the directory that TimelineFile and PictureFile are written to.
	Pictures string
	Out      io.Writer
}

// Run plays all experiments and draws them. It returns an error if the order was wrong in any of those with our scheduler.
func Run(ctx context.Context, o Options) error {
	start := time.Now()
	var errs []error
	timeline := picture.Timeline{
		Title: "1 → 6 → 20 replicas on the same cluster, with pool-priority-scheduler and without",
		Note:  "A run of make demo: a real control plane, a simulated autoscaler, VMs that boot in 2 s",
	}
	for i, e := range experiments() {
		run, err := e.run(ctx, o, i, timeline.Runs)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.title, err))
		}
		if len(run.Steps) > 0 {
			timeline.Runs = append(timeline.Runs, run)
		}
	}
	if len(timeline.Runs) > 0 {
		errs = append(errs, draw(timeline, o))
	}
	fmt.Fprintf(o.Out, "The demo took %.0f s.\n", time.Since(start).Seconds())
	return errors.Join(errs...)
}

// draw writes the timeline and its picture.
func draw(t picture.Timeline, o Options) error {
	data, err := picture.Write(t)
	if err != nil {
		return err
	}
	drawing, err := picture.SVG(t.SameLoad())
	if err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	for name, content := range map[string][]byte{TimelineFile: data, PictureFile: drawing} {
		if err := os.WriteFile(filepath.Join(o.Pictures, name), content, 0o644); err != nil { //nolint:gosec // everybody may look at it
			return fmt.Errorf("writing what the demo saw: %w", err)
		}
	}
	fmt.Fprintf(o.Out, "%s shows both runs of the first load, and %s has the figures of all.\n",
		filepath.Join(o.Pictures, PictureFile), filepath.Join(o.Pictures, TimelineFile))
	return nil
}

// experiment is a cluster, a workload and the replicas that it is scaled to.
type experiment struct {
	title, manifest string
	// name is what the picture calls the run, load what it shares with others that can be compared with it.
	name, load string
	// scheduler is the name of the scheduler that the manifest's pods have; unless it is ours, only the cluster's default one runs.
	scheduler string
	pools     []devcluster.Pool
	tiers     []referee.Tier
	replicas  []int32
	want      []int // pods by tier in the end, of ours
	timeout   time.Duration
}

func (e *experiment) ours() bool { return e.scheduler == devcluster.SchedulerName }

func experiments() []experiment {
	boot := metav1.Duration{Duration: 2 * time.Second}
	cpu, memory := resource.MustParse("1900m"), resource.MustParse("6Gi")
	small := resource.MustParse("850m")
	mode := func(want string) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == want }
	}
	virtual := referee.Tier{Name: "aci", Owns: func(n *corev1.Node) bool { return n.Name == devcluster.VirtualNodeName }}
	ordered := experiment{
		title:     "Ordered pools: 1 → 20 replicas over the user pool, the system pool and the virtual node",
		manifest:  "ordered.yaml",
		name:      "With pool-priority-scheduler",
		load:      "ordered",
		scheduler: devcluster.SchedulerName,
		pools: []devcluster.Pool{
			{Name: "userpool", Mode: "user", Nodes: 1, Min: 1, Max: 3, CPU: cpu, Memory: memory, Priority: 20, BootDelay: boot},
			{Name: "systempool", Mode: "system", Nodes: 1, Min: 1, Max: 2, CPU: cpu, Memory: memory, Priority: 10, BootDelay: boot},
		},
		tiers:    []referee.Tier{{Name: "user", Max: 3, Owns: mode("user")}, {Name: "system", Max: 2, Owns: mode("system")}, virtual},
		replicas: []int32{1, 6, 20},
		want:     []int{9, 6, 5},
		timeout:  time.Minute,
	}
	without := ordered
	without.title = "Without us: the same 1 → 20 replicas on the same cluster, by kube-scheduler with preferred node affinity"
	without.manifest, without.name, without.scheduler = "ordered-without.yaml", "Without: kube-scheduler and preferred affinity", corev1.DefaultSchedulerName
	without.want = nil
	return []experiment{ordered, {
		title:     "Required affinity: 1 → 17 replicas that must run in one agent pool or on the virtual node",
		manifest:  "burst-required.yaml",
		name:      "With pool-priority-scheduler",
		load:      "burst-required",
		scheduler: devcluster.SchedulerName,
		pools: []devcluster.Pool{
			{Name: "agentpool", Mode: "user", Nodes: 1, Min: 1, Max: 2, CPU: small, Memory: memory, Priority: 20, BootDelay: boot},
			{Name: "systempool", Mode: "system", Nodes: 1, Min: 1, Max: 2, CPU: cpu, Memory: memory, Priority: 10, BootDelay: boot},
		},
		tiers:    []referee.Tier{{Name: "user", Max: 2, Owns: mode("user")}, {Name: "system", Max: 2, Owns: mode("system")}, virtual},
		replicas: []int32{1, 17},
		want:     []int{16, 0, 1},
		timeout:  time.Minute,
	}, without}
}
