package poolpriority

import (
	"cmp"
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/returner"
	"poolpriority.dev/scheduler/pkg/version"
)

const subsystem = "pool_priority"

// outcomeVM and outcomeBurst are the values of the label outcome: the kind of node to which a held pod was bound.
const outcomeVM, outcomeBurst = "vm", "burst"

// none is the label value for a pod without a pool or without a reason.
const none = "none"

var (
	gateDecisions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem,
		Name:      "gate_decisions_total",
		Help:      "Decisions of the gate: each scheduling cycle counts one decision for each burst pool. The label decision is open or closed.",
	}, []string{"pool", "decision", "reason"})

	placementsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem,
		Name:      "placements_total",
		Help: "Pods that were bound, by pool (none for nodes in no pool) and reason. The reason is none on VMs. In a burst pool, it is why the gate was open or, " +
			"with mode: Observe, would be closed.",
	}, []string{"pool", "reason"})

	holdDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem,
		Name:      "hold_duration_seconds",
		Help:      "How long held pods had been unschedulable when they were bound, by outcome: vm or burst.",
		Buckets:   []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200},
	}, []string{"outcome"})

	orderViolations = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem,
		Name:      "order_violations_total",
		Help: "Pods that were bound out of order: to a pool although a better one had a feasible node, to a burst pool whose gate was closed, " +
			"or to a virtual kubelet in no burst pool. Must stay 0.",
	})

	cachedDiagnoses = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem,
		Name:      "cached_diagnoses_total",
		Help: "Scheduling cycles that used the cached diagnosis of an equal pod. " +
			"Where many pods wait, most cycles should do so.",
	})

	buildInfo = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem,
		Name:      "build_info",
		Help:      "Always 1. The labels are the version of this build and its minor version of Kubernetes.",
	}, []string{"version", "kubernetes"})

	serverTested = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem,
		Name:      "server_tested",
		Help:      "1 if this build was tested with the API server's minor version (label server), 0 if not.",
	}, []string{"kubernetes", "server"})
)

// Metrics returns the metrics of this package.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{gateDecisions, placementsTotal, holdDuration, orderViolations, cachedDiagnoses, buildInfo, serverTested}
}

// registerMetrics registers the metrics in the scheduler's registry.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(append(Metrics(), returner.Metrics()...)...)
	gatekeeper.RegisterMetrics()
})

// beginMetrics creates the series of the pools with the value 0. If a series first appears with the value 1, Prometheus
// counts no increase.
func beginMetrics(pools pool.List) {
	for i := range pools.Len() {
		reasons := []gate.Entry{{}}
		if pools.IsBurst(i) {
			reasons = gate.Reasons(gate.Kind.Opens)
		}
		for _, reason := range reasons {
			placementsTotal.WithLabelValues(pools.At(i).Name, cmp.Or(reason.Code, none)).Add(0)
		}
	}
	holdDuration.WithLabelValues(outcomeVM)
	holdDuration.WithLabelValues(outcomeBurst)
}

// WatchServer sets the version metrics now and every ten minutes, because the API server may be upgraded while the
// scheduler runs. If an upgrade makes the API server newer than the versions that the build was tested with,
// WatchServer logs a warning. At the start of the scheduler, version.CheckServer logs this warning.
func WatchServer(ctx context.Context, client discovery.ServerVersionInterface) {
	buildInfo.WithLabelValues(version.Ours(), compat.Minor).Set(1)
	var logged *string
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		info, err := client.ServerVersion()
		if err != nil {
			klog.FromContext(ctx).Error(err, "The API server's version cannot be read")
			return
		}
		warning, err := version.Check(info)
		if logged != nil && warning != *logged && warning != "" {
			klog.FromContext(ctx).Info("Warning: " + warning)
		}
		logged = &warning
		tested := 0.0
		if warning == "" && err == nil {
			tested = 1
		}
		serverTested.Reset()
		serverTested.WithLabelValues(compat.Minor, version.Minor(info)).Set(tested)
	}, 10*time.Minute)
}

// placement holds the data for the metrics, the annotations and the event of a bound pod.
type placement struct {
	node         *v1.Node // nil: the node is gone, and its pods will be deleted
	pool, reason string
	burst        *burst        // nil: the node is in no burst pool
	outcome      string        // vm or burst for a pod that was held, else empty
	waited       time.Duration // how long a held pod had been unschedulable
	violation    bool          // the pod is bound out of order
}

// burst holds the reason why a pod is bound to a burst pool.
type burst struct {
	record  gate.Record
	message string
}

// placementOf returns the placement of a pod that is about to be bound to the node. Call placementOf before the pod is
// bound, because a bound pod is no longer held.
func (pl *PoolPriority) placementOf(state fwk.CycleState, pod *v1.Pod, nodeName string) placement {
	node, err := pl.nodes.Get(nodeName)
	if err != nil {
		return placement{}
	}
	p, outcome, waited := placement{node: node}, outcomeVM, time.Duration(0)
	held := false
	if pl.gatekeeper != nil {
		waited = pl.gatekeeper.Waited(pod)
		_, held = pl.gatekeeper.Held().Lookup(pod.UID)
	}
	i := pl.pools.Of(node)
	if i != pool.None {
		p.pool = pl.pools.At(i).Name
	}
	if c, err := readCycle(state); err == nil {
		p.violation = pl.violates(c, node)
		if pl.pools.IsBurst(i) {
			p.reason, outcome = c.decision.Burst[i].Reason.Code, outcomeBurst
			p.burst = &burst{record: c.decision.Record(pl.pools, i, waited), message: c.decision.Message(pl.pools, i, waited)}
		}
	}
	if held {
		p.outcome, p.waited = outcome, waited
	}
	return p
}

// violates reports whether the pod would be bound out of order on the node. A node that the search found is in order,
// even if the node's labels have changed since the search.
func (pl *PoolPriority) violates(c *cycle, node *v1.Node) bool {
	if c.narrowed && c.found.Has(node.Name) {
		return false
	}
	rank, i := pl.pools.RankOf(node)
	return rank == pool.Excluded || c.order.PlaceOf(rank) > c.worst || pl.pools.IsBurst(i) && !c.decision.Burst[i].Open
}

// count counts the placement of a pod that has been bound.
func (p *placement) count(logger klog.Logger, pod *v1.Pod, nodeName string) {
	placementsTotal.WithLabelValues(cmp.Or(p.pool, none), cmp.Or(p.reason, none)).Inc()
	if p.outcome != "" {
		holdDuration.WithLabelValues(p.outcome).Observe(p.waited.Seconds())
	}
	if p.violation {
		orderViolations.Inc()
		logger.Error(nil, "A pod was bound out of order: this is a bug in the scheduler", "pod", klog.KObj(pod), "node", nodeName, "pool", p.pool)
	}
}
