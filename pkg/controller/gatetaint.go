// Package controller holds the reconcilers that run beside the scheduler. They write what cannot be written in a
// scheduling cycle.
package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/controller/watchdog"
	"poolpriority.dev/scheduler/pkg/pool"
)

// GateTaint keeps the installation's gate taint on the nodes of burst pools and off all other nodes. If the API server
// denies a change, or another component undoes it repeatedly, GateTaint writes an event and retries with backoff.
type GateTaint struct {
	Client client.Client
	Pools  pool.List
	// Off removes the taint from all nodes.
	Off bool
	// Recorder writes events on nodes whose taints may not be changed, or whose changes another component undoes.
	Recorder record.EventRecorder
	Clock    clock.Clock
	Progress *watchdog.Watch

	once     sync.Once
	denials  *flowcontrol.Backoff // see backoff
	contests contests
	left     sync.Map // UIDs of nodes that mention has logged
}

var _ reconcile.Reconciler = &GateTaint{}

// SetupWithManager has the manager call the reconciler for every node that changes. It also adds try, a dry run that
// shows whether the controller may change a node. The manager calls try when this process begins to lead.
func (r *GateTaint) SetupWithManager(m ctrl.Manager) error {
	if !r.Off {
		if err := m.Add(manager.RunnableFunc(r.try)); err != nil {
			return err
		}
	}
	return ctrl.NewControllerManagedBy(m).Named("gate-taint").For(&corev1.Node{}).Complete(r.Progress.Reconciler("gate-taint", r))
}

// Reconcile corrects the gate taint of one node.
func (r *GateTaint) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, request.NamespacedName, node); err != nil {
		r.backoff().Reset(request.Name)
		r.contests.forget(request.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.mention(ctx, node)
	now := r.Clock.Now()
	if r.InLine(node) {
		r.backoff().Reset(node.Name)
		r.contests.kept(node.Name, now)
		return reconcile.Result{}, nil
	}
	if r.backoff().IsInBackOffSinceUpdate(node.Name, now) { // Backoff does not return the rest of the pause
		return reconcile.Result{RequeueAfter: deniedRetry}, nil
	}
	side := side{uid: node.UID, tainted: r.wants(node)}
	if wait := r.undone(ctx, node, side, now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	switch err := r.Write(ctx, node); {
	case Denied(err):
		return reconcile.Result{RequeueAfter: r.report(ctx, node, err)}, nil
	case err != nil:
		return NotWritten(err)
	}
	r.backoff().Reset(node.Name)
	r.contests.written(node.Name, side, now)
	if r.InLine(node) {
		return reconcile.Result{}, nil
	}
	// The answer of the API server differs from the request, because a webhook or a policy changed the node. There may
	// be no watch event for it, so the node is reconciled again after a backoff.
	return reconcile.Result{RequeueAfter: r.undone(ctx, node, side, now)}, nil
}

// mention logs, once for each node, that a node of a burst pool has another installation's gate taint. The controller
// leaves such a node alone.
func (r *GateTaint) mention(ctx context.Context, node *corev1.Node) {
	other := r.Pools.OtherOf(node)
	if other == "" || !r.Pools.IsBurstNode(node.Labels) {
		return
	}
	if _, said := r.left.LoadOrStore(node.UID, true); !said {
		log.FromContext(ctx).Info("A burst node has another installation's gate taint, and does not get this installation's: list the node in one installation only", "node", node.Name, "other", other)
	}
}

// Write gives the node the taints that it should have.
func (r *GateTaint) Write(ctx context.Context, node *corev1.Node) error {
	patch := client.MergeFromWithOptions(node.DeepCopy(), client.MergeFromWithOptimisticLock{})
	node.Spec.Taints = r.taints(node)
	if err := r.Client.Patch(ctx, node, patch); err != nil {
		return fmt.Errorf("changing the taints of node %s: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("Changed the gate taint", "node", node.Name, "tainted", r.wants(node))
	return nil
}

// InLine reports whether the node has the installation's gate taint if and only if it should, and no other taint of the
// installation.
func (r *GateTaint) InLine(node *corev1.Node) bool {
	return slices.Equal(r.taints(node), node.Spec.Taints)
}

// wants reports whether the node should have the installation's gate taint. A node with another installation's gate
// taint should not: it is already hidden from autoscalers and from our scheduler, and it cannot have two taints with
// the same key and effect.
func (r *GateTaint) wants(node *corev1.Node) bool {
	return !r.Off && r.Pools.IsBurstNode(node.Labels) && r.Pools.OtherOf(node) == ""
}

// taints returns the taints that the node should have. A gate taint whose value is the installation's name is ours. It
// is removed if its effect is not NoSchedule: PreferNoSchedule hides the node from no autoscaler, and NoExecute evicts
// pods. Other installations' taints stay.
func (r *GateTaint) taints(node *corev1.Node) []corev1.Taint {
	want, own := r.wants(node), r.Pools.GateTaint()
	has := false
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		if !r.Pools.Owns(t) {
			return false
		}
		keep := want && !has && t.MatchTaint(&own)
		has = has || keep
		return !keep
	})
	if want && !has {
		taints = append(taints, own)
	}
	return taints
}
