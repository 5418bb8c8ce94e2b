package integration

import (
	"fmt"
	"os"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/test/must"
)

// BenchmarkThroughput measures how many pods our binary binds in a second, and the CPU time for a pod, from the first
// binding to the last. 5,000 pods wait when the binary starts, on a cluster of 5,000 nodes. The variants are the
// plugin, the default profile, and the default profile that looks for only 100 feasible nodes. The variants take turns.
// Each ratio is the median of the ratios of all rounds.
func BenchmarkThroughput(b *testing.B) {
	const nodes, pods, rounds = 5000, 5000, 3
	c := startCrowd(b)
	c.each(nodes, c.addNode)
	variants := []string{"default", "hundred", "ours"}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\ncluster\tvariant\tpods/s\tCPU ms a pod\tpods/s, ours to it\tCPU, ours to it\ttarget\t\n")
	for _, cluster := range []string{"roomy", "full"} {
		if cluster == "full" { // no user node has free capacity
			c.each(nodes, func(i int) error {
				if i%5 > 2 {
					return nil
				}
				return c.addPod(fmt.Sprintf("full-%d", i), "full", fmt.Sprintf("node-%d", i), "4", "1Gi")
			})
		}
		rate, used := map[string][]float64{}, map[string][]float64{}
		for round := range rounds {
			for i := range variants {
				variant := variants[(i+round)%len(variants)]
				took, cpu := c.bindAll(variant, pods)
				rate[variant] = append(rate[variant], (pods-1)/took.Seconds())
				used[variant] = append(used[variant], float64(cpu.Microseconds())/1000/(pods-1))
				b.Logf("%s, round %d, %s: %d pods in %.1f s, with %.1f s of CPU; load %s", cluster, round+1, variant, pods, took.Seconds(), cpu.Seconds(), load(b))
			}
		}
		for _, variant := range variants {
			faster, cheaper := ratios(rate["ours"], rate[variant]), ratios(used["ours"], used[variant])
			fmt.Fprintf(table, "%s\t%s\t%.0f\t%.2f\t%.2f\t%.2f\t", cluster, variant, middle(rate[variant]), middle(used[variant]), faster, cheaper)
			if variant == "default" {
				fmt.Fprintf(table, "≥ 1.4\t%s", mark(faster >= 1.4))
				b.ReportMetric(faster, cluster+"-ours/default")
			} else {
				fmt.Fprint(table, "–\t")
			}
			fmt.Fprintln(table)
		}
	}
	must.NoError(b, table.Flush())
}

// bindAll makes the pods, starts the variant, and returns the time and the CPU time from the first binding to the last.
func (c *crowd) bindAll(variant string, pods int) (took, used time.Duration) {
	c.Helper()
	app := "crowd"
	c.each(pods, func(i int) error { return c.addPod(fmt.Sprintf("%s-%d", app, i), app, "", "100m", "128Mi") })
	s := c.run(variant)
	var first, last time.Time
	var before, after time.Duration
	bound, done := map[string]bool{}, make(chan struct{})
	stop := c.watchPods(app, func(p *corev1.Pod) {
		if p.Spec.NodeName == "" || bound[p.Name] {
			return
		}
		bound[p.Name] = true
		switch len(bound) {
		case 1:
			first, before = time.Now(), cpu(c, s.PID())
		case pods:
			last, after = time.Now(), cpu(c, s.PID())
			close(done)
		}
	})
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		c.Fatalf("%s did not bind %d pods within 10 minutes", variant, pods)
	}
	stop()
	s.Stop()
	c.removePods(app)
	return last.Sub(first), after - before
}

// ratios returns the median of the ratios.
func ratios(mine, theirs []float64) float64 {
	list := make([]float64, len(mine))
	for i := range mine {
		list[i] = mine[i] / theirs[i]
	}
	return middle(list)
}

func mark(ok bool) string {
	if ok {
		return "ok"
	}
	return "MISSED"
}
