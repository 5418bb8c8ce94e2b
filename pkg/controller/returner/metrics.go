package returner

import (
	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/pool"
)

// What becomes of pods that are to return.
const resultLanded, resultNotLanded, resultRefused = "landed", "not_landed", "refused"

var returns = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "return_evictions_total",
	Help: "Pods of a burst pool that were to return to VMs, by result: landed, the replacement runs elsewhere; not_landed, it runs there again, or there is none; " +
		"refused, the pod could not be evicted.",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool", "result"})

// Metrics returns the metrics of this package.
func Metrics() []metrics.Registerable { return []metrics.Registerable{returns} }

// BeginMetrics has the counters of the pools that have Return enabled exist before anything is counted: that one
// appears with the value 1 is no increase to Prometheus.
func BeginMetrics(pools pool.List) {
	for i := range pools.Burst() {
		if !pools.At(i).Burst.Return.Enabled {
			continue
		}
		for _, result := range []string{resultLanded, resultNotLanded, resultRefused} {
			returns.WithLabelValues(pools.At(i).Name, result).Add(0)
		}
	}
}
