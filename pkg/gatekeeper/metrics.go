package gatekeeper

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/pool"
)

const subsystem = "pool_priority"

var (
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

// RegisterMetrics registers the metrics with the scheduler's own, whether or not there will be a Gatekeeper.
var RegisterMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(poolState, poolNodes, heldPods, wakeUps)
})

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
