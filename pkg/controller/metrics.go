package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/metrics"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"poolpriority.dev/scheduler/pkg/pool"
)

const subsystem = "pool_priority"

// These are the values of the label result of costWrites.
const resultWritten, resultConflict, resultFailed, resultLeft = "written", "conflict", "failed", "left"

var (
	costWrites = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem,
		Name:      "deletion_cost_writes_total",
		Help: "Corrections of the deletion costs of running pods, by result: written; conflict (the pod has changed, and is tried again); " +
			"failed; left (to Karpenter, which sets the costs on VMs; once for each pod). Costs that are set when a pod is bound do not count.",
	}, []string{"result"})

	taintMissing = metrics.NewDesc(metrics.BuildFQName("", subsystem, "gate_taint_missing_nodes"),
		"Nodes of a burst pool without the gate taint. Only a leading controller that keeps the taint exports this metric.", []string{"pool"}, nil, metrics.ALPHA, "")
)

// Metrics returns the metrics of this package except Gauges.
func Metrics() []metrics.Registerable { return []metrics.Registerable{costWrites} }

// BeginMetrics creates all series of costWrites with the value 0. If the first value of a series is 1, Prometheus
// counts no increase.
func BeginMetrics() {
	for _, result := range []string{resultWritten, resultConflict, resultFailed, resultLeft} {
		costWrites.WithLabelValues(result).Add(0)
	}
}

// countCostWrite counts the result of a write of a deletion cost.
func countCostWrite(err error) {
	switch {
	case err == nil:
		costWrites.WithLabelValues(resultWritten).Inc()
	case apierrors.IsNotFound(err): // a pod that no longer exists needs no cost
	case apierrors.IsConflict(err):
		costWrites.WithLabelValues(resultConflict).Inc()
	default:
		costWrites.WithLabelValues(resultFailed).Inc()
	}
}

// Gauges returns a collector for the number of burst nodes without the gate taint. The collector has no series until
// elected is closed, which happens when this process becomes the leader. If the gate taint is off, the collector has no
// series at all. The client of r must read from a cache.
func (r *GateTaint) Gauges(elected <-chan struct{}) metrics.StableCollector {
	return &gauges{taint: r, elected: elected}
}

type gauges struct {
	metrics.BaseStableCollector
	taint   *GateTaint
	elected <-chan struct{}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *gauges) DescribeWithStability(ch chan<- *metrics.Desc) { ch <- taintMissing }

// CollectWithStability implements metrics.StableCollector.
func (c *gauges) CollectWithStability(ch chan<- metrics.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	if c.taint.Off {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // List blocks until the cache has synced
	defer cancel()
	nodes := &corev1.NodeList{}
	if err := c.taint.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	missing := make([]int, c.taint.Pools.Len())
	for k := range nodes.Items {
		if node := &nodes.Items[k]; !pool.HasGateTaint(node) {
			if i := c.taint.Pools.Of(node); c.taint.Pools.IsBurst(i) {
				missing[i]++
			}
		}
	}
	for i := range c.taint.Pools.Burst() {
		ch <- metrics.NewLazyConstMetric(taintMissing, metrics.GaugeValue, float64(missing[i]), c.taint.Pools.At(i).Name)
	}
}
