package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// When another component undoes a change of a node's taints, the controller repeats the change after a backoff.
	// contestedRetry is the first backoff, and maxContestedRetry the longest. If a change lasted for maxContestedRetry
	// before it was undone, the controller repeats it at once.
	contestedRetry, maxContestedRetry = time.Second, time.Minute
	// contestedAfter is the number of undone changes in a row after which the controller writes an event on the node.
	contestedAfter = 3

	// ReasonGateTaintContested is the reason of the event on a node whose gate taint another component changes
	// repeatedly.
	ReasonGateTaintContested = "GateTaintContested"
)

// contestKey returns the key of the backoff of the node while it should have the taint, or should not. A new node with the
// same name has another key.
func contestKey(node *corev1.Node, tainted bool) string {
	return fmt.Sprintf("%s/%s/%v", node.Name, node.UID, tainted)
}

// changed records that the controller changed the node's taints. If earlier changes were undone again and again, it
// writes one event.
func (r *GateTaint) changed(ctx context.Context, node *corev1.Node) {
	key, contests := contestKey(node, r.wants(node)), r.backoffs().contests
	contests.GC()
	contests.DeleteEntry(contestKey(node, !r.wants(node)))
	contests.Next(key, r.Clock.Now())
	if contests.Get(key) != contestedRetry<<contestedAfter {
		return
	}
	taint := r.Pools.GateTaint()
	what := fmt.Sprintf("the gate taint %s was set %d times and taken off again each time", taint.ToString(), contestedAfter)
	if !r.wants(node) {
		what = fmt.Sprintf("the gate taint %s was taken off %d times and set again each time", taint.ToString(), contestedAfter)
	}
	what += fmt.Sprintf(". Another controller, an admission policy or a webhook undoes the change. Exempt the key %s in that component. The controller retries with a backoff of at most a minute", taint.Key)
	if r.wants(node) {
		what += ". Meanwhile, " + denial.Consequence
	}
	log.FromContext(ctx).Error(nil, "The gate taint of a node is contested", "node", node.Name, "problem", what)
	r.Recorder.Eventf(node, corev1.EventTypeWarning, ReasonGateTaintContested, "%s", refusal.Short(what, refusal.MaxEvent))
}
