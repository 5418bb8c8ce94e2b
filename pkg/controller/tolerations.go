package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/pool"
)

// Tolerations adds to pods that are bound to a node of a burst pool the tolerations that the scheduler looked past its
// taints by, so that the pod's spec is true for every other component. It never touches a pod that is not bound: a
// pending pod that tolerates the gate taint keeps autoscalers from adding nodes for it, and a toleration cannot be taken
// away again.
type Tolerations struct {
	Client client.Client
	Pools  pool.List
}

var _ reconcile.Reconciler = &Tolerations{}

// SetupWithManager has the manager call the reconciler for every bound pod that changes.
func (r *Tolerations) SetupWithManager(m ctrl.Manager) error {
	bound := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.(*corev1.Pod).Spec.NodeName != "" })
	return ctrl.NewControllerManagedBy(m).Named("tolerations").For(&corev1.Pod{}).WithEventFilter(bound).Complete(r)
}

// Reconcile brings one pod in line.
func (r *Tolerations) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, request.NamespacedName, pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	missing := r.missing(pod, node)
	if len(missing) == 0 {
		return reconcile.Result{}, nil
	}
	// The API server refuses to take tolerations away: the lock keeps those that others add at the same time.
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, missing...)
	if err := r.Client.Patch(ctx, pod, patch); err != nil {
		return notWritten(fmt.Errorf("adding tolerations to pod %s: %w", request, err))
	}
	log.FromContext(ctx).V(1).Info("Added the burst pool's tolerations", "pod", request, "node", node.Name)
	return reconcile.Result{}, nil
}

// missing returns the tolerations that the pod lacks for the node that it is bound to.
func (r *Tolerations) missing(pod *corev1.Pod, node *corev1.Node) []corev1.Toleration {
	i := r.Pools.Of(node.Labels)
	if !r.Pools.IsBurst(i) {
		return nil
	}
	return slices.DeleteFunc(r.Pools.At(i).Tolerations(), func(t corev1.Toleration) bool {
		return slices.ContainsFunc(pod.Spec.Tolerations, func(have corev1.Toleration) bool { return have.MatchToleration(&t) })
	})
}
