package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// A mode is a way to run a row.
type mode struct {
	Name     string   `json:"name"`
	Env      []string `json:"env"`
	Baseline bool     `json:"baseline"` // without the plugin
}

// A row is a workload of scheduler_perf.
type row struct {
	Name  string `json:"name"`  // TESTCASE/WORKLOAD
	Modes []mode `json:"modes"` // beside the default profile and one pool
	topic string // the folder with its configuration
}

// workload has the fields of a test case and of a workload in the configuration of scheduler_perf.
type workload struct {
	Name         string          `json:"name"`
	Labels       []string        `json:"labels"`
	FeatureGates map[string]bool `json:"featureGates"`
	Workloads    []workload      `json:"workloads"`
}

// run has the figures of a run by their names: the average throughput, and those of scheduler.Measured.
type run map[string]float64

var figures = regexp.MustCompile(`([\d.]+) (SchedulingThroughput/Average|Placed/\S+)`)

// figure returns the name of the figure that is compared, and whether less is better.
func (w row) figure() (name string, less bool) {
	switch {
	case strings.HasPrefix(w.Name, "Preemption"):
		return "Placed/Took-s", true
	case strings.HasPrefix(w.Name, "Starvation"):
		return "Placed/Wait99-s", true
	}
	return "SchedulingThroughput/Average", false
}

// rows returns the workloads whose name or label matches a pattern, or those of rows.yaml if it is empty. It leaves out
// those that emulate Kubernetes 1.33 in 1.35.
func (r *runner) rows(pattern *regexp.Regexp) ([]row, error) {
	var chosen, rows []row
	if err := readYAML("rows.yaml", &chosen, yaml.DisallowUnknownFields); err != nil {
		return nil, err
	}
	root := filepath.Join(r.work, copiesDir, perf)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "performance-config.yaml" {
			return err
		}
		topic, err := filepath.Rel(root, filepath.Dir(path))
		var cases []workload
		if err := cmp.Or(err, readYAML(path, &cases)); err != nil {
			return err
		}
		for _, c := range cases {
			for _, w := range c.Workloads {
				found := row{Name: c.Name + "/" + w.Name, topic: topic}
				known := slices.IndexFunc(chosen, func(c row) bool { return c.Name == strings.TrimSuffix(found.Name, "_QueueingHintsEnabled") })
				if hints, ok := w.FeatureGates["SchedulerQueueingHints"]; ok && !hints || known < 0 && pattern.String() == "" ||
					!slices.ContainsFunc(slices.Concat(c.Labels, w.Labels, []string{found.Name}), pattern.MatchString) {
					continue
				}
				if known >= 0 {
					found.Modes = chosen[known].Modes
				}
				rows = append(rows, found)
			}
		}
		return nil
	})
	for _, c := range chosen {
		if pattern.String() == "" && !slices.ContainsFunc(rows, func(r row) bool { return strings.TrimSuffix(r.Name, "_QueueingHintsEnabled") == c.Name }) {
			fmt.Printf("%s: this version of Kubernetes does not have it\n", c.Name)
		}
	}
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("no workload matches %q", pattern)
	}
	return rows, err
}

// bench measures the workloads that match, prints each run and a table, and reports whether all runs succeeded.
func (r *runner) bench(ctx context.Context, pattern *regexp.Regexp) (bool, error) {
	rows, err := r.rows(pattern)
	if r.pairs < 1 {
		err = fmt.Errorf("PAIRS is %d, and must be at least 1", r.pairs)
	}
	if err != nil {
		return false, err
	}
	fmt.Printf("%d workloads\n", len(rows))
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "\nworkload\tours\tagainst\tfigure\tpairs\tmedian ratio (more is better)\tverdict\ts until all are placed\tmedian ratio (more is better)\tCPU ms a pod\tmedian ratio (less is better)")
	var binary, topic string
	ok := true
	for _, w := range rows {
		if w.topic != topic {
			if binary, err = r.compile(ctx, perf+"/"+w.topic); err != nil {
				return false, err
			}
			topic = w.topic
		}
		lines, err := r.measure(ctx, w, binary)
		fmt.Fprint(table, lines)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil:
			fmt.Printf("%s: FAILED: %v\n", w.Name, err)
			ok = false
		}
	}
	return ok, nil
}

// measure runs a workload in pairs, in the other order each time, until there are verdicts, and returns lines of the
// table.
func (r *runner) measure(ctx context.Context, w row, binary string) (lines string, err error) {
	modes := append([]mode{{Name: "default", Baseline: true}, {Name: "one pool", Env: []string{"POOLS=all"}}}, w.Modes...)
	runs := make([][]run, len(modes))
	for pair, decided := 1, false; pair <= r.pairs && !decided; pair++ {
		for i := range modes {
			if pair%2 == 0 {
				i = len(modes) - 1 - i
			}
			got, err := r.play(ctx, w, binary, modes[i], pair)
			if err != nil {
				return lines, fmt.Errorf("pair %d, %s: %w", pair, modes[i].Name, err)
			}
			fmt.Printf("%s, pair %d, %s: %v\n", w.Name, pair, modes[i].Name, got)
			runs[i] = append(runs[i], got)
		}
		for i := range runs {
			if ours, base := runs[i][pair-1]["Placed/Pods"], runs[0][pair-1]["Placed/Pods"]; ours != base {
				return lines, fmt.Errorf("pair %d, %s: %g pods were placed, but %g with the default profile", pair, modes[i].Name, ours, base)
			}
		}
		lines, decided = summary(w, modes, runs)
	}
	return lines, nil
}

// summary compares each mode with the default profile, and one pool with another baseline. It returns lines of the table,
// and whether there are all verdicts.
func summary(w row, modes []mode, runs [][]run) (lines string, decided bool) {
	name, less := w.figure()
	decided = true
	for i := 1; i < len(modes); i++ {
		ours, base := i, 0
		if modes[i].Baseline {
			ours, base = 1, i
		}
		pairs, ratios := compare(runs[ours], runs[base], name, less)
		took, tookRatios := compare(runs[ours], runs[base], "Placed/Took-s", true)
		cpu, cpuRatios := compare(runs[ours], runs[base], "Placed/CPU-ms", false)
		word := verdict(ratios)
		decided = decided && word != ""
		lines += fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%.2f\t%s\t%.2f\n", w.Name, modes[ours].Name, modes[base].Name, name,
			pairs, median(ratios), cmp.Or(word, "open"), took, median(tookRatios), cpu, median(cpuRatios))
	}
	return lines, decided
}

// compare returns the pairs of a figure, ours and the baseline's, and their ratios, inverse if less is better.
func compare(ours, base []run, name string, less bool) (pairs string, ratios []float64) {
	for i := range ours {
		a, b := ours[i][name], base[i][name]
		pairs += fmt.Sprintf("%g:%g ", a, b)
		if less {
			a, b = b, a
		}
		ratios = append(ratios, a/b)
	}
	return pairs, ratios
}

// play runs a workload once, in a process of its own, and returns its figures.
func (r *runner) play(ctx context.Context, w row, binary string, m mode, pair int) (run, error) {
	logs := filepath.Join(r.work, "logs", "bench")
	path := filepath.Join(logs, strings.NewReplacer("/", "-", " ", "-", ",", "").Replace(fmt.Sprintf("%s-%s-%d", w.Name, m.Name, pair)))
	cmd := r.command(ctx, binary, "-test.run=^$", "-test.bench=^BenchmarkPerfScheduling$/^"+strings.ReplaceAll(w.Name, "/", "$/^")+"$",
		"-test.benchtime=1x", "-test.timeout=100m", "-perf-scheduling-label-filter=", "-data-items-dir="+logs)
	if r.profile {
		cmd.Args = append(cmd.Args, "-test.cpuprofile="+path+".prof")
	}
	cmd.Dir = filepath.Join(r.work, copiesDir, perf, w.topic)
	cmd.Env = append(append(cmd.Env, "POOLS=", "FIRST=", "PERCENTAGE="), m.Env...)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	out, err := cmd.CombinedOutput()
	got := run{}
	for _, match := range figures.FindAllSubmatch(out, -1) {
		got[string(match[2])], _ = strconv.ParseFloat(string(match[1]), 64)
	}
	if name, _ := w.figure(); err == nil && got[name]*got["Placed/CPU-ms"] == 0 {
		err = fmt.Errorf("there is no %s: the workload is too short", name)
	}
	if err != nil {
		err = fmt.Errorf("%w; see %s.log", err, path)
		return nil, errors.Join(err, os.WriteFile(path+".log", out, 0o600))
	}
	return got, nil
}
