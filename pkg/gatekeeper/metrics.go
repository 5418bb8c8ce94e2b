package gatekeeper

import (
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"poolpriority.dev/scheduler/pkg/gatekeeper/providers"
	"poolpriority.dev/scheduler/pkg/gatekeeper/publishing"
	"poolpriority.dev/scheduler/pkg/gatekeeper/sources"
)

var wakeUps = metrics.NewCounter(&metrics.CounterOpts{
	Subsystem:      "pool_priority",
	Name:           "woken_pods_total",
	Help:           "Held pods that were tried again because a gate opened for them.",
	StabilityLevel: metrics.ALPHA,
})

// leader is the publisher of this process that the gauges are about: that of the gatekeeper that began to lead last.
var leader atomic.Pointer[publishing.Publisher]

// Gauges returns the collector of what is known of the pools. It has series while this process leads, and none
// otherwise.
func Gauges() metrics.StableCollector { return publishing.Gauges(leader.Load) }

// Metrics returns the metrics of this package but for Gauges.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{providers.Refusals, wakeUps, sources.Errors, publishing.Failures}
}

// RegisterMetrics registers the metrics with the scheduler's own, whether or not there will be a Gatekeeper.
var RegisterMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(Metrics()...)
	legacyregistry.CustomMustRegister(Gauges())
})
