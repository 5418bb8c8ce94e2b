// Package controller holds the reconcilers of pool-priority-controller, which runs beside the scheduler. They make the
// changes to nodes and bound pods that a scheduling cycle cannot make.
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

	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/pool"
)

// GateTaint keeps the installation's gate taint on the nodes of burst pools and removes it from all other nodes. If the
// API server denies a change, or if another component undoes a change repeatedly, GateTaint writes an event and retries
// with backoff.
type GateTaint struct {
	Client client.Client
	Pools  pool.List
	// If Off is set, GateTaint removes the gate taint from all nodes.
	Off bool
	// Recorder writes an event on a node if the API server denies a change of the node's taints, or if another
	// component undoes the change repeatedly.
	Recorder record.EventRecorder
	Clock    clock.Clock

	once  sync.Once
	waits backoffs
	left  sync.Map // UIDs of nodes that mention has logged
}

// backoffs are the backoffs of the nodes for which the API server denied a change, by node name, and of those for which
// another component may undo a change, by contestKey.
type backoffs struct{ denials, contests *flowcontrol.Backoff }

func (r *GateTaint) backoffs() backoffs {
	r.once.Do(func() {
		r.waits = backoffs{flowcontrol.NewBackOff(deniedRetry, maxDeniedRetry), flowcontrol.NewBackOff(contestedRetry, maxContestedRetry)}
		r.waits.denials.Clock, r.waits.contests.Clock = r.Clock, r.Clock
	})
	return r.waits
}

// SetupWithManager has the manager call the reconciler for every node that changes. Unless Off is set, the manager also
// calls try when this process becomes the leader. try tests by a dry run whether the controller may change a node.
func (r *GateTaint) SetupWithManager(m ctrl.Manager) error {
	if !r.Off {
		if err := m.Add(manager.RunnableFunc(r.try)); err != nil {
			return err
		}
	}
	return ctrl.NewControllerManagedBy(m).Named("gate-taint").For(&corev1.Node{}).Complete(endsWithin(stuckAfter, "gate-taint", r, die))
}

// Reconcile corrects the gate taint of one node.
func (r *GateTaint) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node, waits := &corev1.Node{}, r.backoffs()
	if err := r.Client.Get(ctx, request.NamespacedName, node); err != nil {
		waits.denials.Reset(request.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.mention(ctx, node)
	now := r.Clock.Now()
	if r.InLine(node) {
		waits.denials.Reset(node.Name)
		return reconcile.Result{}, nil
	}
	// flowcontrol.Backoff has no method for the remaining time.
	if waits.denials.IsInBackOffSinceUpdate(node.Name, now) {
		return reconcile.Result{RequeueAfter: deniedRetry}, nil
	}
	if waits.contests.IsInBackOffSinceUpdate(contestKey(node, r.wants(node)), now) {
		return reconcile.Result{RequeueAfter: contestedRetry}, nil
	}
	switch err := r.Write(ctx, node); {
	case denial.Is(err):
		return reconcile.Result{RequeueAfter: r.report(ctx, node, err)}, nil
	case err != nil:
		return notWritten(err)
	}
	waits.denials.Reset(node.Name)
	r.changed(ctx, node)
	if r.InLine(node) {
		return reconcile.Result{}, nil
	}
	// The node in the API server's response does not have the requested taints, because a webhook or a policy changed
	// them. The API server may send no watch event, so the controller reconciles the node again after a backoff.
	return reconcile.Result{RequeueAfter: contestedRetry}, nil
}

// mention logs, once for each node, that a node of a burst pool has another installation's gate taint. The controller
// puts no second gate taint on such a node.
func (r *GateTaint) mention(ctx context.Context, node *corev1.Node) {
	other := r.Pools.OtherOf(node)
	if other == "" || !r.Pools.IsBurstNode(node) {
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

// InLine reports whether the node already has exactly the taints that it should have, so that Write would change
// nothing.
func (r *GateTaint) InLine(node *corev1.Node) bool {
	return slices.Equal(r.taints(node), node.Spec.Taints)
}

// wants reports whether the node should have the installation's gate taint. A node with another installation's gate
// taint should not have ours. The other taint already hides the node from autoscalers and from our scheduler. A node
// cannot have two taints with the same key and effect.
func (r *GateTaint) wants(node *corev1.Node) bool {
	return !r.Off && r.Pools.IsBurstNode(node) && r.Pools.OtherOf(node) == ""
}

// taints returns the taints that the node should have. A gate taint is ours if its value is the installation's name. If
// the effect of our gate taint is not NoSchedule, the taint is removed: PreferNoSchedule does not hide the node from
// autoscalers, and NoExecute evicts pods. The gate taints of other installations stay.
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
