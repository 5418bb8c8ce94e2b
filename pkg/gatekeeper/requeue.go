package gatekeeper

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// maxBatchWait is how often sendBatches checks at least whether the next batch is due.
const maxBatchWait = time.Second

// requeue requeues the held pods in the map, whose keys are namespace/name. The pods are requeued in batches, in the
// order of their priorities and waiting times (held.Pods.NextBatch). A pod that is no longer held is left out.
func (g *Gatekeeper) requeue(pods map[string]*v1.Pod) { g.enqueue(pods, true) }

// enqueue is like requeue. Unless always is set, it leaves out a pod for which the loop has decided again before the
// pod's batch (held.Pods.Enqueue).
func (g *Gatekeeper) enqueue(pods map[string]*v1.Pod, always bool) {
	if len(pods) > 0 {
		g.held.Enqueue(pods, always)
		poke(g.batch)
	}
}

// sendBatches requeues one batch after another, until the context ends.
func (g *Gatekeeper) sendBatches(ctx context.Context) {
	for ctx.Err() == nil {
		g.sendBatch(ctx)
		select {
		case <-ctx.Done():
		case <-g.batch:
		case <-g.config.Clock.After(maxBatchWait):
		}
	}
}

// sendBatch requeues the next batch if it is due.
func (g *Gatekeeper) sendBatch(ctx context.Context) {
	if pods := g.held.NextBatch(g.config.Clock.Now()); len(pods) > 0 {
		klog.FromContext(ctx).V(2).Info("Requeueing held pods", "pods", len(pods))
		requeuedPods.Add(float64(len(pods)))
		g.config.Activate(klog.FromContext(ctx), pods)
	}
}

// tried records that the pod was tried, bound or deleted.
func (g *Gatekeeper) tried(pod types.UID) {
	if g.held.Tried(pod, g.config.Clock.Now()) {
		poke(g.batch)
	}
}

// freeBudget makes the loop requeue pods that wait for a budget.
func (g *Gatekeeper) freeBudget() {
	g.freed.Store(true)
	poke(g.earlier)
}
