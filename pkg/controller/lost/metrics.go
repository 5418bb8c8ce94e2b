package lost

import (
	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/pool"
)

// Why a pod is taken back.
const reasonRefused, reasonLate = "refused", "late"

var takenBack = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem:      "pool_priority",
	Name:           "taken_back_pods_total",
	Help:           "Lost pods that were evicted from a burst pool so that they are made anew, by reason: refused by the provider, or late, not started within startWithin.",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool", "reason"})

// Metrics returns the metrics of this package.
func Metrics() []metrics.Registerable { return []metrics.Registerable{takenBack} }

// BeginMetrics has the counters exist before anything is counted: that one appears with the value 1 is no increase to Prometheus.
func BeginMetrics(pools pool.List) {
	for i := range pools.Burst() {
		for _, reason := range []string{reasonRefused, reasonLate} {
			takenBack.WithLabelValues(pools.At(i).Name, reason).Add(0)
		}
	}
}
