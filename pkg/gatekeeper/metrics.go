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

var requeuedPods = metrics.NewCounter(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "requeued_pods_total",
	Help:      "Held pods that the gatekeeper requeued.",
})

// leader is the publisher that the gauges read. A gatekeeper stores its publisher in leader when it becomes the leader.
var leader atomic.Pointer[publishing.Publisher]

// Gauges returns the collector of the pools' gauges. The collector has series only while this process is the leader.
func Gauges() metrics.StableCollector { return publishing.Gauges(leader.Load) }

// Metrics returns the metrics of this package and its sub-packages, without Gauges.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{providers.Refusals, providers.Evictions, requeuedPods, sources.Errors, publishing.Failures}
}

// RegisterMetrics registers Metrics and Gauges in kube-scheduler's metrics registry. It may be called before a
// Gatekeeper exists.
var RegisterMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(Metrics()...)
	legacyregistry.CustomMustRegister(Gauges())
})
