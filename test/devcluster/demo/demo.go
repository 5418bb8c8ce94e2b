// Package demo plays experiments on the embedded cluster with the scheduler binary, its shipped configuration and its
// shipped rights, and judges the placements. One load is played again without our scheduler.
package demo

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
)

// TimelineFile and PictureFile are the files that Run writes. The timeline has all runs. The picture shows the first
// load with our scheduler and without it.
const TimelineFile, PictureFile = "demo.json", "demo.svg"

// Options are the demo's directories and its output.
type Options struct {
	// Dir is the directory of the clusters' files.
	Dir string
	// BinDir has tools/, pool-priority-scheduler and pool-priority-controller.
	BinDir string
	// Manifests is the directory of the shipped manifests.
	Manifests string
	// Pictures is the directory that TimelineFile and PictureFile are written to.
	Pictures string
	Out      io.Writer
}

//go:embed experiments.yaml
var experimentsFile []byte

// experiment is a cluster, a load and the replicas that it is scaled to. experiments.yaml says more.
type experiment struct {
	Title, Name, Load string
	Pools             []devcluster.Pool
	Replicas          []int
	Want              []int
	Deployment        string
}

// ours says whether our scheduler runs.
func (e experiment) ours() bool { return e.Want != nil }

// Run plays all experiments and draws them. It returns an error if the order was wrong in an experiment with our
// scheduler.
func Run(ctx context.Context, o Options) error {
	start := time.Now()
	var experiments []experiment
	if err := yaml.UnmarshalStrict(experimentsFile, &experiments); err != nil {
		return fmt.Errorf("reading the experiments: %w", err)
	}
	timeline := picture.Timeline{
		Title: "1 → 6 → 20 replicas on the same cluster, with pool-priority-scheduler and without",
		Note:  "A run of make demo: a real control plane, a simulated autoscaler, VMs that boot in 2 s",
	}
	var errs []error
	for i, e := range experiments {
		run, err := e.run(ctx, o, i, timeline.Runs)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Title, err))
		}
		if len(run.Steps) > 0 {
			timeline.Runs = append(timeline.Runs, run)
		}
	}
	if len(timeline.Runs) > 0 {
		errs = append(errs, write(timeline, o))
	}
	fmt.Fprintf(o.Out, "The demo took %.0f s.\n", time.Since(start).Seconds())
	return errors.Join(errs...)
}

// write writes the timeline and its picture.
func write(t picture.Timeline, o Options) error {
	data, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return fmt.Errorf("encoding what the demo saw: %w", err)
	}
	for name, content := range map[string][]byte{TimelineFile: append(data, '\n'), PictureFile: picture.SVG(t.SameLoad())} {
		if err := os.WriteFile(filepath.Join(o.Pictures, name), content, 0o644); err != nil { //nolint:gosec // everybody may look at it
			return fmt.Errorf("writing what the demo saw: %w", err)
		}
	}
	fmt.Fprintf(o.Out, "%s shows both runs of the first load, and %s has the figures of all.\n",
		filepath.Join(o.Pictures, PictureFile), filepath.Join(o.Pictures, TimelineFile))
	return nil
}

// run plays the experiment on a cluster of its own and returns what was seen, also if the order was wrong. A run
// without our scheduler is compared with the earlier run of its load.
func (e experiment) run(ctx context.Context, o Options, number int, earlier []picture.Run) (picture.Run, error) {
	fmt.Fprintf(o.Out, "\n%s\n%s\n", e.Title, strings.Repeat("─", len([]rune(e.Title))))
	start := time.Now()
	cluster, err := devcluster.Start(context.WithoutCancel(ctx), devcluster.Options{
		Dir: filepath.Join(o.Dir, fmt.Sprintf("demo-%d", number+1)), BinDir: filepath.Join(o.BinDir, "tools"),
		Pools: e.Pools, VirtualNode: true, Autoscaler: &devcluster.AutoscalerOptions{Interval: time.Second},
	})
	if err != nil {
		return picture.Run{}, err
	}
	defer cluster.Stop()
	fmt.Fprintf(o.Out, "The control plane and its nodes are up after %.1f s. ", time.Since(start).Seconds())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{experiment: e, Options: o, cluster: cluster}
	defer func() {
		for _, c := range t.components {
			c.Stop()
		}
	}()
	if err := t.begin(ctx); err != nil {
		return picture.Run{}, err
	}
	if err := t.play(ctx); err != nil {
		return t.seen(), fmt.Errorf("%w (the logs are in %s)", err, cluster.Dir())
	}
	if e.ours() {
		return t.seen(), t.verdict()
	}
	return t.compare(ctx, earlier), nil
}
