// Command perf compares the scheduling cycle of the PoolPriority profile with that of other profiles, in one process
// without an API server, with the real framework and the real in-tree plugins. The variants take turns on the same
// cluster (A B C, B C A, …), so that other load on the machine affects all of them. Each round has a ratio of two
// variants' medians, and a figure is the median of these ratios.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/apis/config/scheme"
	"poolpriority.dev/scheduler/test/compat"
)

func main() {
	sizes := flag.String("sizes", "1000,5000,15000", "numbers of VMs")
	rounds := flag.Int("rounds", 7, "rounds")
	pods := flag.Int("pods", 500, "pods in a variant's turn, where a cycle takes less than a millisecond; elsewhere an eighth of that")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b := &bench{ctx: ctx, rounds: *rounds, pods: *pods, out: os.Stdout}
	for _, s := range strings.Split(*sizes, ",") {
		size, err := strconv.Atoi(s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "-sizes: %v\n", err)
			os.Exit(2)
		}
		b.sizes = append(b.sizes, size)
	}
	if err := b.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type bench struct {
	ctx           context.Context
	sizes         []int
	rounds, pods  int
	out           io.Writer
	wrong, judged int
	unplaced      int
}

// comparison is a variant that our profile is compared with.
type comparison struct {
	with   string
	target float64 // the largest ratio allowed; 0 is no target
}

// scenario is a cluster's state and the pods that are scheduled.
type scenario struct {
	fill fill
	kind kind
	with []comparison
}

// scenarios returns the scenarios for a number of VMs.
func scenarios(size int) []scenario {
	// What is left of a cycle with room is kube-scheduler's own work for 100 nodes: the variant hundred takes as long.
	// The targets leave room for a machine of 2 CPUs, where the default profile of 1.35.8 is a quarter faster than that
	// of 1.35.4.
	targets := map[int][3]float64{1000: {0.50, 0.30, 0.30}, 5000: {0.42, 0.22, 0.25}, 15000: {0.38, 0.19, 0.22}}[size]
	list := []scenario{
		{roomy, plain, []comparison{{"default", targets[0]}}},
		{nearlyFull, plain, []comparison{{"default", targets[1]}}},
		{full, plain, []comparison{{"default", targets[2]}}},
	}
	if size == 15000 { // hundred looks for 150 nodes there, because one percent is the minimum
		list[0].with = append(list[0].with, comparison{"hundred", 0})
	}
	if size != 5000 {
		return list
	}
	list[0].with = append(list[0].with, comparison{"hundred", 1.3}, comparison{"preferred", 0}, comparison{"all", 0.08})
	list[2].with = append(list[2].with, comparison{"hundred", 0.9}, comparison{"preferred", 0}, comparison{"all", 0.08})
	return append(list,
		scenario{overflowing, plain, []comparison{{"default", 0}}},
		scenario{roomy, ordered, []comparison{{unordered, 1.05}}},
		scenario{full, ordered, []comparison{{unordered, 1.05}}},
		scenario{roomy, nothing, []comparison{{"default", 1.15}}},
		scenario{roomy, volume, []comparison{{"default", 0}}},
		scenario{full, volume, []comparison{{"default", 0}}},
	)
}

func (b *bench) run() error {
	scheme.Register()
	fmt.Fprintf(b.out, "%s/%s, %d CPUs, %s; %d rounds; times are medians (p50) of one scheduling cycle\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), b.rounds)
	table := tabwriter.NewWriter(b.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "VMs\tcluster\tpods\tours\tagainst\tbaseline\tratio\ttarget\t")
	for _, size := range b.sizes {
		clusters := map[fill]*cluster{}
		for _, s := range scenarios(size) {
			if clusters[s.fill] == nil {
				clear(clusters) // one at a time: 15,000 nodes take memory
				runtime.GC()
				c, err := newCluster(b.ctx, size, s.fill)
				if err != nil {
					return err
				}
				clusters[s.fill] = c
			}
			if err := b.compare(table, clusters[s.fill], size, s); err != nil {
				return err
			}
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "\nPods in the wrong pool: %d, wrongly unschedulable: %d, of %d compared with brute force: %s\n", b.wrong, b.unplaced, b.judged, verdict(float64(b.wrong+b.unplaced), 0))
	return b.acceptPath()
}

func verdict(value, target float64) string {
	if value <= target {
		return "ok"
	}
	return "MISSED"
}

// compare prints a row for each variant that the scenario is compared with.
func (b *bench) compare(table io.Writer, c *cluster, size int, s scenario) error {
	variants := []string{"ours"}
	for _, w := range s.with {
		variants = append(variants, w.with)
	}
	medians, bytes := map[string][]float64{}, map[string][]float64{}
	for round := -1; round < b.rounds; round++ { // round -1 warms up, and its placements are judged
		for i := range variants {
			v := variants[(i+max(round, 0))%len(variants)]
			pods := min(b.pods, size/5) // all clusters have room for this many
			if s.kind != plain && s.kind != volume && s.kind != ordered {
				pods = min(pods, b.pods/8)
			}
			if v == "all" || round < 0 {
				pods = min(pods, b.pods/8)
			}
			o, err := c.schedule(v, s.kind, pods, round < 0)
			if err != nil {
				return err
			}
			if round < 0 {
				if v == "ours" {
					b.wrong, b.unplaced, b.judged = b.wrong+o.wrong, b.unplaced+o.wronglyUnplaced, b.judged+pods
				}
				continue
			}
			medians[v] = append(medians[v], float64(o.cycles[len(o.cycles)/2]))
			bytes[v] = append(bytes[v], float64(o.bytes))
		}
	}
	row := func(what string, ours, theirs []float64, with comparison, format func(float64) string) {
		ratios := make([]float64, len(ours))
		for i := range ratios {
			ratios[i] = ours[i] / theirs[i]
		}
		ratio := median(ratios)
		target, mark := "–", ""
		if with.target > 0 {
			target, mark = "≤ "+strconv.FormatFloat(with.target, 'g', 3, 64), verdict(ratio, with.target)
		}
		fmt.Fprintf(table, "%d\t%s\t%s%s\t%s\t%s\t%s\t%.3f\t%s\t%s\n", size, s.fill, s.kind, what, format(median(ours)), with.with, format(median(theirs)), ratio, target, mark)
	}
	for _, w := range s.with {
		row("", medians["ours"], medians[w.with], w, func(ns float64) string { return fmt.Sprintf("%.0f µs", ns/1000) })
		if size == 5000 && s.kind == plain && w.with == "default" {
			row(", allocated", bytes["ours"], bytes["default"], comparison{"default", 0.25}, func(n float64) string { return fmt.Sprintf("%.0f kB", n/1000) })
		}
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// acceptPath measures the time and the allocations of our Filter for a node that passes.
func (b *bench) acceptPath() error {
	c, err := newCluster(b.ctx, 100, roomy)
	if err != nil {
		return err
	}
	pod := makePod("pod", plain)
	pod.Spec.SchedulerName = "ours"
	profile := c.sched.Profiles["ours"]
	if _, err := compat.SchedulePod(b.ctx, c.sched, profile, framework.NewCycleState(), pod); err != nil {
		return err
	}
	state := framework.NewCycleState()
	if _, status, _ := profile.RunPreFilterPlugins(b.ctx, state, pod); !status.IsSuccess() {
		return status.AsError()
	}
	info, err := profile.SnapshotSharedLister().NodeInfos().Get("node-00000")
	if err != nil {
		return err
	}
	result := testing.Benchmark(func(t *testing.B) {
		t.ReportAllocs()
		for range t.N {
			if status := c.filter.Filter(b.ctx, state, pod, info); !status.IsSuccess() {
				t.Fatal(status.Message())
			}
		}
	})
	mark := verdict(max(float64(result.NsPerOp())/100, float64(result.AllocsPerOp()*2)), 1)
	fmt.Fprintf(b.out, "Our Filter's accept path: %d ns, %d allocations; target ≤ 100 ns, 0: %s\n", result.NsPerOp(), result.AllocsPerOp(), mark)
	return nil
}
