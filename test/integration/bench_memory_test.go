package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
)

const memoryUpdates = 100 // status updates of pods, a second

var (
	memoryStarts = flag.Int("starts", 5, "how many processes of each scheduler BenchmarkMemory starts")
	memoryAfter  = flag.Duration("after", 5*time.Minute, "how long after the last start BenchmarkMemory measures")
)

// BenchmarkMemory compares the resident memory of the scheduler with our plugin and with the in-tree plugins only, on
// clusters of three sizes. All processes run the same binary on the same control plane, at the same time. A figure is the
// median of several, because the memory of a process depends on its last garbage collection. Pods change meanwhile, so that
// each process reaches the size at which it collects garbage.
func BenchmarkMemory(b *testing.B) {
	for _, nodes := range []int{10, 500, 5000} {
		b.Run(fmt.Sprintf("%d_nodes", nodes), func(b *testing.B) { benchmarkMemory(b, nodes) })
	}
}

func benchmarkMemory(b *testing.B, nodes int) {
	const podsPerNode = 10
	c := startCrowd(b)
	c.populate(nodes, podsPerNode)
	returns := replaced(b, "testdata/no-leader-election.yaml", "        burst:\n", "        burst:\n          return: {enabled: true}\n")
	variants := []struct{ name, config, rights string }{
		{"the in-tree plugins", "testdata/stock-scheduler.yaml", c.rbac}, {"ours", "testdata/no-leader-election.yaml", c.rbac}, {"ours, with return", returns, returnRBAC}}
	most := []float64{1, 1.10, 1.20} // of the in-tree plugins' memory
	var sizes [3][]float64
	var running [3][]*devcluster.Component
	for range *memoryStarts {
		for i, v := range variants {
			running[i] = append(running[i], must.Get(c.StartScheduler(c.ctx, filepath.Join(*bin, devcluster.SchedulerName), v.config, v.rights))(b))
		}
	}
	controller := c.control("testdata/no-leader-election.yaml") // before, the API server might have no time for its lease
	ctx, cancel := context.WithTimeout(c.ctx, *memoryAfter)
	defer cancel()
	every(ctx, memoryUpdates, func(i int) { // else, the sizes depend on what was left of the start
		_, _ = c.client.CoreV1().Pods(namespace).Patch(c.ctx, fmt.Sprintf("pod-%d-0", i%nodes), types.MergePatchType,
			fmt.Appendf(nil, `{"status":{"message":"update %d"}}`, i), metav1.PatchOptions{}, "status")
	})
	for i := range running {
		for _, scheduler := range running[i] {
			sizes[i] = append(sizes[i], resident(b, scheduler.PID()))
		}
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "\nresident memory, %d nodes, %d pods\tmedian\tratio\ttarget\t\teach start, MiB\n", nodes, nodes*podsPerNode)
	for i, v := range variants {
		each := fmt.Sprintf("%.0f", sizes[i])
		ratio := middle(sizes[i]) / middle(sizes[0])
		fmt.Fprintf(table, "%s\t%.0f MiB\t%.2f\t≤ %.2f\t%s\t%s\n", v.name, middle(sizes[i]), ratio, most[i], mark(ratio <= most[i]), each)
	}
	size := resident(b, controller.PID())
	fmt.Fprintf(table, "the controller\t%.0f MiB\t\t≤ 200 MiB\t%s\n", size, mark(size <= 200))
	must.NoError(b, table.Flush())
}

// resident returns the process's resident memory in MiB.
func resident(t testing.TB, pid int) float64 {
	status := must.ReadFile(t, fmt.Sprintf("/proc/%d/status", pid))
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kilobytes := must.Get(strconv.ParseFloat(fields[1], 64))(t)
			return kilobytes / 1024
		}
	}
	t.Fatalf("process %d has no VmRSS", pid)
	return 0
}

func mark(ok bool) string {
	if ok {
		return "ok"
	}
	return "MISSED"
}
