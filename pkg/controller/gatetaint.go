// Package controller holds the reconcilers that run beside the scheduler: what must be written to the cluster and has
// no place in a scheduling cycle.
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

// GateTaint keeps the installation's gate taint on the nodes of burst pools and off all others. If the API server
// denies that, or another component undoes it repeatedly, it writes an event and retries with backoff.
type GateTaint struct {
	Client client.Client
	Pools  pool.List
	// Off takes the taint off all nodes.
	Off bool
	// Recorder writes events on nodes whose taints may not be changed, or are changed by another component.
	Recorder record.EventRecorder
	Clock    clock.Clock
	Progress *watchdog.Watch

	once     sync.Once
	denials  *flowcontrol.Backoff // see backoff
	contests contests
	left     sync.Map // nodes that were logged because they have another installation's gate taint, by UID
}

var _ reconcile.Reconciler = &GateTaint{}

// SetupWithManager has the manager call the reconciler for every node that changes, and once, when the process begins
// to lead, has it try by a dry run whether it may change a node.
func (r *GateTaint) SetupWithManager(m ctrl.Manager) error {
	if !r.Off {
		if err := m.Add(manager.RunnableFunc(r.try)); err != nil {
			return err
		}
	}
	return ctrl.NewControllerManagedBy(m).Named("gate-taint").For(&corev1.Node{}).Complete(r.Progress.Reconciler("gate-taint", r))
}

// Reconcile brings one node in line.
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
	if r.backoff().IsInBackOffSinceUpdate(node.Name, now) { // it does not say how much of the pause is left
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
	// What the API server answers is not what was asked for: a webhook or a policy changed it, and no event may come.
	return reconcile.Result{RequeueAfter: r.undone(ctx, node, side, now)}, nil
}

// mention logs once that a node of a burst pool has another installation's gate taint, which is left alone.
func (r *GateTaint) mention(ctx context.Context, node *corev1.Node) {
	other := r.Pools.OtherOf(node)
	if other == "" || !r.Pools.IsBurstNode(node.Labels) {
		return
	}
	if _, said := r.left.LoadOrStore(node.UID, true); !said {
		log.FromContext(ctx).Info("A node of a burst pool has the gate taint of another installation, and gets none of this one: list it in one of them only", "node", node.Name, "other", other)
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

// InLine reports whether the node has the installation's gate taint exactly if it should, and no other taint that is
// the installation's.
func (r *GateTaint) InLine(node *corev1.Node) bool {
	return slices.Equal(r.taints(node), node.Spec.Taints)
}

// wants reports whether the node should have the installation's gate taint. One that has another installation's is
// hidden from autoscalers and from our scheduler, and has no room for it.
func (r *GateTaint) wants(node *corev1.Node) bool {
	return !r.Off && r.Pools.IsBurstNode(node.Labels) && r.Pools.OtherOf(node) == ""
}

// taints returns the taints that the node should have. A gate taint with the installation's name is ours; with another
// effect, which has no use or would evict pods, it is removed. Other installations' taints stay.
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
