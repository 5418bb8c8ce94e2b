package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// Tolerations adds the burst pool's tolerations to pods that run on a burst node. The scheduler placed these pods as if
// they had the tolerations. Other components read tolerations from the pod's spec, and would conclude without them that
// the pod does not fit its node. Tolerations changes a pod only after the pod is bound: autoscalers add no node for a
// pending pod that tolerates the gate taint, and a toleration cannot be removed again. Tolerations also waits until the
// pod runs. When the tolerations of a pod change, virtual-kubelet syncs the pod again. If the pod does not run yet, the
// ACI connector may then create its container group twice, which loses the pod (azure-aci v1.6.4). A pod that the
// provider refused, or that has ended, needs no tolerations.
type Tolerations struct {
	Client client.Client
	Pools  pool.List
}

// SetupWithManager has the manager call the reconciler for a pod when the pod begins to run, and whenever the running
// pod changes. When the taints of a burst node change, the manager calls the reconciler for all running pods on the
// node.
func (r *Tolerations) SetupWithManager(m ctrl.Manager) error {
	runs := predicate.NewPredicateFuncs(func(o client.Object) bool { return running(o.(*corev1.Pod)) })
	tainted := predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // the pods of a new node have watch events of their own
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return r.Pools.IsBurstNode(e.ObjectNew.(*corev1.Node)) && !slices.Equal(e.ObjectOld.(*corev1.Node).Spec.Taints, e.ObjectNew.(*corev1.Node).Spec.Taints)
		},
	}
	return ctrl.NewControllerManagedBy(m).Named("tolerations").
		For(&corev1.Pod{}, builder.WithPredicates(runs)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.runningOn), builder.WithPredicates(tainted)).
		Complete(endsWithin(stuckAfter, "tolerations", r, die))
}

// running reports whether the pod needs the tolerations and may be changed. Such a pod is bound, has started, is not
// terminating and has not ended.
func running(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && refusal.Started(pod)
}

// runningOn returns requests for the pods that run on the node.
func (r *Tolerations) runningOn(ctx context.Context, node client.Object) []reconcile.Request {
	return requestsFor(ctx, r.Client, node, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == node.GetName() && running(pod) }, client.UnsafeDisableDeepCopy)
}

// requestsFor lists pods, and returns requests for those of the node that match.
func requestsFor(ctx context.Context, from client.Reader, node client.Object, match func(*corev1.Pod) bool, options ...client.ListOption) []reconcile.Request {
	pods := &corev1.PodList{}
	if err := from.List(ctx, pods, options...); err != nil {
		log.FromContext(ctx).Error(err, "The pods of a node cannot be listed", "node", node.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range pods.Items {
		if pod := &pods.Items[i]; match(pod) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
		}
	}
	return requests
}

// Reconcile adds the missing tolerations to one pod.
func (r *Tolerations) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, request.NamespacedName, pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !running(pod) {
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
	// Without the optimistic lock, the patch would drop tolerations that another component adds at the same time. The
	// API server rejects the removal of tolerations.
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, missing...)
	if err := r.Client.Patch(ctx, pod, patch); err != nil {
		return notWritten(fmt.Errorf("adding tolerations to pod %s: %w", request, err))
	}
	log.FromContext(ctx).V(1).Info("Added the burst pool's tolerations", "pod", request, "node", node.Name)
	return reconcile.Result{}, nil
}

// missing returns the burst pool's tolerations that the pod lacks for its node's taints and for the gate taint, which the
// node may get later. If burst.addTolerations is false, it returns none. If the pod tolerates a taint in another form, such
// as {operator: Exists}, it returns none for that taint.
func (r *Tolerations) missing(pod *corev1.Pod, node *corev1.Node) []corev1.Toleration {
	i := r.Pools.Of(node)
	if !r.Pools.IsBurst(i) || !ptr.Deref(r.Pools.At(i).Burst.AddTolerations, true) {
		return nil
	}
	var missing []corev1.Toleration
	tolerates := func(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
		return corev1helpers.TolerationsTolerateTaint(klog.Background(), tolerations, taint, true)
	}
	taints := node.Spec.Taints
	if !slices.ContainsFunc(taints, r.Pools.Owns) {
		taints = append(slices.Clone(taints), r.Pools.GateTaint())
	}
	for k := range taints {
		taint := &taints[k]
		if tolerates(pod.Spec.Tolerations, taint) || tolerates(missing, taint) {
			continue
		}
		for _, t := range r.Pools.At(i).Tolerations() {
			if t.ToleratesTaint(klog.Background(), taint, true) {
				missing = append(missing, t)
				break
			}
		}
	}
	return missing
}
