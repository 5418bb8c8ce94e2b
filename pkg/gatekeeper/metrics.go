package gatekeeper

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"poolpriority.dev/scheduler/pkg/gatekeeper/providers"
	"poolpriority.dev/scheduler/pkg/gatekeeper/sources"
)

const subsystem = "pool_priority"

var (
	wakeUps = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "woken_pods_total",
		Help:           "Held pods that were tried again because a gate opened for them.",
		StabilityLevel: metrics.ALPHA,
	})

	publishFailures = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "publish_failures_total",
		Help:           "Failures to write the ConfigMap that the next leader and the tools read.",
		StabilityLevel: metrics.ALPHA,
	})
)

// Metrics returns the metrics of this package but for Gauges.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{providers.Refusals, wakeUps, sources.Errors, publishFailures}
}

// RegisterMetrics registers the metrics with the scheduler's own, whether or not there will be a Gatekeeper.
var RegisterMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(Metrics()...)
	legacyregistry.CustomMustRegister(Gauges())
})

// boolean is 1 or 0.
func boolean(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
