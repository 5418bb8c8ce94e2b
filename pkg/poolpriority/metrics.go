package poolpriority

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

const subsystem = "pool_priority"

var (
	gateDecisions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "gate_decisions_total",
		Help:           "Decisions of the gate, one for each burst pool in each scheduling cycle, by pool, decision (open or closed) and reason.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"pool", "decision", "reason"})

	poolState = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "pool_state",
		Help:           "1 for the state that a regular pool is in, with its reason.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"pool", "state", "reason"})

	poolNodes = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "pool_nodes",
		Help:           "Number of nodes of a pool.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"pool"})

	heldPods = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "held_pods",
		Help:           "Number of pending pods that a closed gate holds back.",
		StabilityLevel: metrics.ALPHA,
	})

	wakeUps = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "woken_pods_total",
		Help:           "Held pods that were tried again because a gate opened for them.",
		StabilityLevel: metrics.ALPHA,
	})
)

// registerMetrics registers the metrics with the scheduler's own.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(gateDecisions, poolState, poolNodes, heldPods, wakeUps)
})

func recordDecision(pools pool.List, d *gate.Decision) {
	for b := range d.Burst {
		decision := "closed"
		if d.Burst[b].Open {
			decision = "open"
		}
		gateDecisions.WithLabelValues(pools.At(pools.Regular()+b).Name, decision, d.Burst[b].Reason.Code).Inc()
	}
}

func recordState(pools pool.List, view *capacity.View, held int) {
	poolState.Reset()
	for i := range pools.Regular() {
		poolState.WithLabelValues(pools.At(i).Name, string(view.Pools[i].State), view.Pools[i].Reason.Code).Set(1)
	}
	for i := range pools.Len() {
		poolNodes.WithLabelValues(pools.At(i).Name).Set(float64(view.Pools[i].Nodes))
	}
	heldPods.Set(float64(held))
}
