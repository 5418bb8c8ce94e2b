// Package schedulerperf measures throughput with Kubernetes' own benchmark, scheduler_perf: pods are created and bound
// with a real etcd and API server. scheduler_perf cannot wrap a profile, so the plugin is measured without our wrapper.
package schedulerperf

import (
	"fmt"
	"os"
	"testing"

	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"

	"poolpriority.dev/scheduler/pkg/apis/config/scheme"
	"poolpriority.dev/scheduler/pkg/poolpriority"
)

func TestMain(m *testing.M) {
	scheme.Register()
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

func BenchmarkPerfScheduling(b *testing.B) {
	perf.RunBenchmarkPerfScheduling(b, "config/workloads.yaml", "poolpriority", runtime.Registry{poolpriority.Name: poolpriority.New})
}
