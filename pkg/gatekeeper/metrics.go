package gatekeeper

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
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

	burstRefusing = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "burst_refusing",
		Help:           "1 while a burst pool is closed because its provider refuses pods, or is tried with one pod because it did; 0 otherwise.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"pool"})

	burstRefusals = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "burst_refusals_total",
		Help:           "Pods that a burst pool's provider refused, by its code; other for codes that the scheduler does not know.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"pool", "code"})

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
	legacyregistry.MustRegister(poolState, poolNodes, burstRefusing, burstRefusals, heldPods, wakeUps)
})

func recordState(pools pool.List, view *capacity.View, held int) {
	poolState.Reset()
	for i := range pools.Regular() {
		poolState.WithLabelValues(pools.At(i).Name, string(view.Pools[i].State), view.Pools[i].Reason.Code).Set(1)
	}
	for i := range pools.Len() {
		poolNodes.WithLabelValues(pools.At(i).Name).Set(float64(view.Pools[i].Nodes))
	}
	for i := range pools.Burst() {
		refusing := 0.0
		if state := view.Pools[i].Provider.State; state == refusal.Refusing || state == refusal.Probing {
			refusing = 1
		}
		burstRefusing.WithLabelValues(pools.At(i).Name).Set(refusing)
	}
	heldPods.Set(float64(held))
}
