// Package demo runs experiments on the embedded cluster, and judges the placements. The scheduler binary runs with the
// shipped configuration and rights. One load is run again without this project's scheduler.
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
// load with and without this project's scheduler.
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

// experiment is a cluster, a load and the numbers of replicas to which the load is scaled. experiments.yaml describes
// the fields.
type experiment struct {
	Title, Name, Load string
	Pools             []devcluster.Pool
	Replicas          []int
	Want              []int
	Deployment        string
}

// ours reports whether this project's scheduler runs in the experiment.
func (e experiment) ours() bool { return e.Want != nil }

// Run runs all experiments and draws them. If the order was wrong in an experiment with this project's scheduler, Run
// returns an error.
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

// run runs the experiment on a new cluster. Even if the order was wrong, it returns the observations. It compares a run
// without this project's scheduler with the earlier run of the same load.
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
		err = t.verdict()
	} else {
		t.compare(ctx, earlier)
	}
	return t.seen(), err
}
