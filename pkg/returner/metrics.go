package returner

import (
	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/pool"
)

// These are the values of the label result of returns.
const resultLanded, resultNotLanded, resultRefused, resultHarmful = "landed", "not_landed", "refused", "harmful"

// These are the values of the label result of rounds.
const roundComplete, roundCutShort, roundFailed = "complete", "cut_short", "failed"

var rounds = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "return_rounds_total",
	Help:      "Rounds of Return, by result: complete; cut_short (it took too long, and some pods were neither checked nor evicted); failed.",
}, []string{"result"})

var returns = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "return_evictions_total",
	Help: "Returns of pods to better pools, by result: landed (the replacement runs in a better pool); not_landed (it does not, or there is none); " +
		"refused (the pod could not be evicted); harmful (the eviction would have harmed the workload or a CapacityBuffer).",
}, []string{"pool", "result"})

// Metrics returns the metrics of this package.
func Metrics() []metrics.Registerable { return []metrics.Registerable{returns, rounds} }

// BeginMetrics creates the series of rounds, and of the pools that have Return enabled, with the value 0. If the first value of a
// series is 1, Prometheus counts no increase.
func BeginMetrics(pools pool.List) {
	for _, result := range []string{roundComplete, roundCutShort, roundFailed} {
		rounds.WithLabelValues(result).Add(0)
	}
	for i := range pools.Len() {
		if pools.At(i).Return() == nil {
			continue
		}
		for _, result := range []string{resultLanded, resultNotLanded, resultRefused, resultHarmful} {
			returns.WithLabelValues(pools.At(i).Name, result).Add(0)
		}
	}
}
