// Package controller holds the reconcilers that run beside the scheduler: what must be written to the cluster and has no
// place in a scheduling cycle.
package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/controller/progress"
	"poolpriority.dev/scheduler/pkg/pool"
)

// GateTaint keeps the gate taint on the nodes of burst pools and off all others. Where the API server denies it that, it says so, and
// tries again ever later.
type GateTaint struct {
	Client client.Client
	Pools  pool.List
	// Off takes the taint off all nodes.
	Off bool
	// Recorder says on a node that its taints may not be changed.
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
	Progress *progress.Watch

	denials denials
}

var _ reconcile.Reconciler = &GateTaint{}

// SetupWithManager has the manager call the reconciler for every node that changes, and once, when the process begins to lead, has it
// try by a dry run whether it may change a node.
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
		r.denials.forget(request.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if r.InLine(node) {
		r.denials.forget(node.Name)
		return reconcile.Result{}, nil
	}
	if wait := r.denials.wait(node.Name, r.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil // a node's status changes all the time
	}
	switch err := r.Write(ctx, node); {
	case Denied(err):
		return reconcile.Result{RequeueAfter: r.tell(ctx, node, err)}, nil
	case err != nil:
		return notWritten(err)
	}
	r.denials.forget(node.Name)
	return reconcile.Result{}, nil
}

// Write gives the node the taints that it should have.
func (r *GateTaint) Write(ctx context.Context, node *corev1.Node) error {
	patch := client.MergeFromWithOptions(node.DeepCopy(), client.MergeFromWithOptimisticLock{})
	node.Spec.Taints = r.taints(node)
	if err := r.Client.Patch(ctx, node, patch); err != nil {
		return fmt.Errorf("changing the taints of node %s: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("Changed the gate taint", "node", node.Name, "tainted", slices.ContainsFunc(node.Spec.Taints, pool.IsGateTaint))
	return nil
}

// InLine reports whether the node has the gate taint exactly if it should, and no other taint of its key.
func (r *GateTaint) InLine(node *corev1.Node) bool {
	return slices.Equal(r.taints(node), node.Spec.Taints)
}

// taints returns the taints that the node should have. The gate taint's key is ours: what has it and another effect, which hides the
// node from nobody or would evict pods, goes.
func (r *GateTaint) taints(node *corev1.Node) []corev1.Taint {
	want := !r.Off && r.Pools.IsBurstNode(node.Labels)
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return t.Key == configv1.GateTaintKey && !(want && pool.IsGateTaint(t))
	})
	if want && !slices.ContainsFunc(taints, pool.IsGateTaint) {
		taints = append(taints, gateTaintWith(""))
	}
	return taints
}

// gateTaintWith is the gate taint with the value.
func gateTaintWith(value string) corev1.Taint {
	return corev1.Taint{Key: configv1.GateTaintKey, Value: value, Effect: corev1.TaintEffectNoSchedule}
}
