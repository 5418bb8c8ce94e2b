package integration

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/must"
)

// BenchmarkArrivals measures the cost of new nodes while many pods wait. 5,000 nodes are full, and 10,000 pods of 20
// sizes wait. Then an autoscaler adds 300 nodes, 10 a second, each with capacity for eight pods. With the plugin, the
// pods are held, because the pool can grow. With the default profile, they are unschedulable. The CPU time is the
// scheduler's. It counts from the first new node until the new nodes are full, and for at least a minute.
func BenchmarkArrivals(b *testing.B) {
	const nodes, pods, rounds = 5000, 10000, 1
	c := startCrowd(b)
	c.each(nodes, func(i int) error {
		if err := c.addNode(i); err != nil {
			return err
		}
		return c.addPod(fmt.Sprintf("full-%d", i), "full", fmt.Sprintf("node-%d", i), "4", "1Gi")
	})
	c.control("testdata/throughput/ours.yaml")
	c.waitGated(true)
	variants := []string{"ours", "default"}
	results := map[string][]arrivals{}
	for round := range rounds {
		for i := range variants {
			variant := variants[(i+round)%len(variants)]
			r := c.arrive(variant, pods)
			results[variant] = append(results[variant], r)
			b.Logf("round %d, %s: %.1f s of CPU in %.0f s, node ready → pod bound: p50 %v, p99 %v, last %v; load %s", round+1, variant,
				r.cpu.Seconds(), r.took.Seconds(), r.waits[len(r.waits)/2], r.p99(), r.waits[len(r.waits)-1], load(b))
		}
	}
	figures := func(variant string, figure func(arrivals) time.Duration) []float64 {
		var list []float64
		for _, r := range results[variant] {
			list = append(list, figure(r).Seconds())
		}
		return list
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nfigure (median of %d)\tours\tdefault\tratio\ttarget\t\n", rounds)
	row := func(name, unit string, figure func(arrivals) time.Duration, target float64) {
		mine, theirs := figures("ours", figure), figures("default", figure)
		ratio := ratios(mine, theirs)
		fmt.Fprintf(table, "%s\t%.2f s\t%.2f s\t%.2f\t≤ %g\t%s\n", name, middle(mine), middle(theirs), ratio, target, mark(ratio <= target))
		b.ReportMetric(ratio, unit)
	}
	row("CPU time of the scheduler", "cpu-ours/default", func(r arrivals) time.Duration { return r.cpu }, 0.5)
	row("node ready → its pods bound, p99", "p99-ours/default", arrivals.p99, 1)
	must.NoError(b, table.Flush())
}

// arrivals are the results of one run of BenchmarkArrivals.
type arrivals struct {
	cpu, took time.Duration
	waits     []time.Duration // for each pod, from when its new node was ready until the pod was bound; sorted
}

func (a arrivals) p99() time.Duration { return a.waits[len(a.waits)*99/100] }

// arrive creates the pods, waits until the scheduler variant has found all of them unschedulable, and creates the
// nodes.
func (c *crowd) arrive(variant string, pods int) arrivals {
	const came, room, interval, atLeast = 300, 8, 100 * time.Millisecond, time.Minute
	c.Helper()
	c.groupSays("user-group", 3000, 3000+came, 3000+came)
	started := time.Now()
	s := c.run(variant)
	c.each(pods, func(i int) error {
		return c.addPod(fmt.Sprintf("waiting-%d", i), "waiting", "", "500m", fmt.Sprintf("%dMi", 100+i%20))
	})
	waiting, bound := map[string]bool{}, map[string]time.Time{}
	nodeOf := map[string]string{}
	allWait, allBound := make(chan struct{}), make(chan struct{})
	stop := c.watchPods("waiting", func(p *corev1.Pod) {
		switch {
		case p.Spec.NodeName != "" && bound[p.Name].IsZero():
			bound[p.Name], nodeOf[p.Name] = time.Now(), p.Spec.NodeName
			if len(bound) == came*room {
				close(allBound)
			}
		case !waiting[p.Name] && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }):
			waiting[p.Name] = true
			if len(waiting) == pods {
				close(allWait)
			}
		}
	})
	c.await(allWait, "all pods are found unschedulable by "+variant)
	c.Logf("%s: all pods wait after %.0f s", variant, time.Since(started).Seconds())
	time.Sleep(15 * time.Second) // until no pod is in backoff

	before, began := cpu(c, s.PID()), time.Now()
	ready := map[string]time.Time{}
	ticker := time.NewTicker(interval)
	for i := range came {
		if i%50 == 0 { // the autoscaler's loop
			c.groupSays("user-group", 3000+i, 3000+came, 3000+came)
		}
		name := fmt.Sprintf("new-%d", i)
		ready[name] = time.Now()
		must.NoError(c, c.addNodeOf(name, "user"))
		<-ticker.C
	}
	ticker.Stop()
	c.groupSays("user-group", 3000+came, 3000+came, 3000+came+1) // the pool can still grow, so no pod bursts
	c.await(allBound, "the room is taken by "+variant)
	time.Sleep(time.Until(began.Add(atLeast)))
	result := arrivals{cpu: cpu(c, s.PID()) - before, took: time.Since(began)}
	stop()
	s.Stop()
	for pod, at := range bound {
		if from, ok := ready[nodeOf[pod]]; ok {
			result.waits = append(result.waits, at.Sub(from))
		} else {
			c.Fatalf("%s bound %s to %s", variant, pod, nodeOf[pod])
		}
	}
	slices.Sort(result.waits)
	c.removePods("waiting")
	c.each(came, func(i int) error {
		return c.client.CoreV1().Nodes().Delete(c.ctx, fmt.Sprintf("new-%d", i), metav1.DeleteOptions{})
	})
	return result
}

func (c *crowd) await(done <-chan struct{}, what string) {
	c.Helper()
	select {
	case <-done:
	case <-time.After(15 * time.Minute):
		c.Fatalf("after 15 minutes it is not so that %s", what)
	}
}
