package scheduler

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// PoolLabel is the label of the nodes in scheduler_perf that has the name of their pool, for POOLS=three.
const PoolLabel = "test.poolpriority.dev/third"

// PoolOf returns the pool of the node with an index, counted from 0. The environment variable FIRST has the number of
// nodes in the first pool.
func PoolOf(node int) string {
	if first, _ := strconv.Atoi(os.Getenv("FIRST")); node < first {
		return "first"
	}
	return []string{"second", "third"}[node%2]
}

// measured has what scheduler_perf's collector sees of the pods that a workload measures.
var measured struct {
	sync.Mutex
	began      time.Time
	cpu        time.Duration // at the beginning
	unplaced   map[types.UID]time.Time
	waits      []time.Duration
	took, used time.Duration // until the last pod was placed: time, and CPU time of the process
}

// Begin begins a measurement.
func Begin() {
	measured.Lock()
	defer measured.Unlock()
	measured.began, measured.cpu = time.Now(), cpuTime()
	measured.unplaced, measured.waits = map[types.UID]time.Time{}, nil
}

// Observe notes when a pod was created, and when it was placed. Pods that had been placed before do not count.
func Observe(pod types.UID, placed bool) {
	measured.Lock()
	defer measured.Unlock()
	created, known := measured.unplaced[pod]
	switch {
	case placed && known:
		delete(measured.unplaced, pod)
		measured.waits = append(measured.waits, time.Since(created))
		measured.took, measured.used = time.Since(measured.began), cpuTime()-measured.cpu
	case !placed && !known:
		measured.unplaced[pod] = time.Now()
	}
}

// Measured returns the number of pods that were placed, how long that took, the CPU time of the process for each, and
// the median and the 99th percentile of the pods' waiting.
func Measured() map[string]float64 {
	measured.Lock()
	defer measured.Unlock()
	n := len(measured.waits)
	if n == 0 {
		return nil
	}
	slices.Sort(measured.waits)
	return map[string]float64{
		"Pods": float64(n), "Took-s": measured.took.Seconds(), "CPU-ms": 1000 * measured.used.Seconds() / float64(n),
		"Wait50-s": measured.waits[(n-1)/2].Seconds(), "Wait99-s": measured.waits[(99*n-1)/100].Seconds(),
	}
}

// cpuTime returns the CPU time of the process, which is that of the scheduler, of the API server and of the test.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
