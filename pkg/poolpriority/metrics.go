package poolpriority

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/pool"
)

var gateDecisions = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem:      "pool_priority",
	Name:           "gate_decisions_total",
	Help:           "Decisions of the gate, one for each burst pool in each scheduling cycle, by pool, decision (open or closed) and reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"pool", "decision", "reason"})

// registerMetrics registers the metrics with the scheduler's own.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(gateDecisions)
	gatekeeper.RegisterMetrics()
})

// recordDecision counts what the gate says, whether or not that is only observed.
func recordDecision(pools pool.List, d *gate.Decision) {
	for i := range pools.Burst() {
		v, decision := &d.Burst[i], "closed"
		if v.Open && !v.Observed {
			decision = "open"
		}
		gateDecisions.WithLabelValues(pools.At(i).Name, decision, v.Reason.Code).Inc()
	}
}
