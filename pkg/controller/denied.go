package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// If the API server denies a change of a node, the controller retries with backoff. deniedRetry is the first
	// backoff, and maxDeniedRetry is the longest.
	deniedRetry, maxDeniedRetry = 10 * time.Second, 5 * time.Minute

	// ReasonGateTaintDenied is the reason of the event on a node whose taints the controller may not change.
	ReasonGateTaintDenied = "GateTaintDenied"

	// lasting describes the effect of a gate taint that the controller cannot remove. In mode Observe, the controller
	// has no right to change nodes.
	lasting = "the gate taint stays and hides the node from other schedulers. To remove the taint, run pool-priority-controller cleanup --taint-only with the right to edit nodes"
)

// try tests by one dry run whether the controller may put the gate taint on nodes. So the controller reports a denial
// before the first node needs a change. try always returns nil, because an error would end the controller.
func (r *GateTaint) try(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	err := r.Client.List(ctx, nodes)
	var node, changed *corev1.Node
	if err == nil {
		node, changed = r.Pools.GateTaintTrial(nodes.Items)
	}
	if node != nil {
		// Without the optimistic lock, the patch would drop a taint that another component added meanwhile. A policy that
		// forbids such a removal would then deny the dry run.
		err = r.Client.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}), client.DryRunAll)
	}
	switch {
	case denial.Is(err) && node != nil:
		r.report(ctx, node, err)
	case err != nil:
		log.FromContext(ctx).Info("Cannot test whether the controller may put the gate taint on nodes", "answer", err.Error())
	}
	return nil
}

// report writes an event that the API server denied a change of the node. It returns the backoff before the next
// attempt.
func (r *GateTaint) report(ctx context.Context, node *corev1.Node, err error) time.Duration {
	denials := r.backoffs().denials
	denials.Next(node.Name, r.Clock.Now())
	pause := denials.Get(node.Name)
	advice := denial.Advice(err)
	if !r.wants(node) {
		advice = lasting
	}
	log.FromContext(ctx).Error(err, "The controller may not change the gate taint of a node", "taint", configv1.GateTaintKey, "node", node.Name, "advice", advice, "again", pause)
	r.Recorder.Eventf(node, corev1.EventTypeWarning, ReasonGateTaintDenied, "%s", refusal.Short(err.Error()+"; "+advice, refusal.MaxEvent))
	return pause
}
