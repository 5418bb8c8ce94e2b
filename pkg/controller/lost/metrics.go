package lost

import (
	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/pool"
)

// These are the values of the label reason of evictedPods.
const reasonRefused, reasonLate = "refused", "late"

var evictedPods = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem:      "pool_priority",
	Name:           "burst_evictions_total",
	Help:           "Pods that were evicted from a burst pool so that their owners replace them, by reason: refused (by the provider) or late (not started within startWithin).",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool", "reason"})

// Metrics returns the metrics of this package.
func Metrics() []metrics.Registerable { return []metrics.Registerable{evictedPods} }

// BeginMetrics creates all series of evictedPods with the value 0. If the first value of a series is 1, Prometheus
// counts no increase.
func BeginMetrics(pools pool.List) {
	for i := range pools.Burst() {
		for _, reason := range []string{reasonRefused, reasonLate} {
			evictedPods.WithLabelValues(pools.At(i).Name, reason).Add(0)
		}
	}
}
