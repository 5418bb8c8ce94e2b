package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// nodeNameField is the pod field that the cache indexes.
const nodeNameField = "spec.nodeName"

// DeletionCost sets the deletion costs of our scheduler's pods. It corrects a cost when the pool list changes or when
// the labels of the pod's node change. If Others is set, it also sets the costs of pods of other schedulers. If Others
// is not set, it removes the costs that it wrote earlier on pods of other schedulers. It removes the cost only once
// from each pod, because another component that writes the cost again would undo each removal. DeletionCost changes
// only pods of ReplicaSets. StatefulSets, DaemonSets and Jobs do not read the cost. ReplicationControllers read it, but
// DeletionCost does not handle their pods. DeletionCost keeps a cost that another component set. It changes a pod on a
// burst node only after the pod has started. If the pod changes before its start, virtual-kubelet may create the pod
// again, and the pod may be lost. Once Karpenter has set the cost of a pod (its feature gate PodDeletionCostManagement),
// DeletionCost leaves the costs on VMs to Karpenter, which overwrites them all. The cost in burst pools stays below
// Karpenter's costs, which are -1 to -n for n VMs that it may remove, unless n exceeds 1,000. VMs that it is removing
// have the lowest cost of all.
type DeletionCost struct {
	Client client.Client
	Pools  pool.List
	// SchedulerName is the name of our scheduler.
	SchedulerName string
	// Others extends DeletionCost to pods of other schedulers in listed pools, except pods in kube-system.
	Others   bool
	Recorder record.EventRecorder

	karpenter atomic.Bool // whether Karpenter has set the cost of a pod

	mu       sync.Mutex
	reported map[types.NamespacedName]types.UID // pods for which this process wrote the event DeletionCostKept
	undone   map[types.NamespacedName]types.UID // pods from which this process removed its cost
}

// SetupWithManager has the manager call the reconciler for a ReplicaSet's bound pod when the pod changes. When the
// labels of a node change, the manager calls the reconciler for all such pods on the node.
func (r *DeletionCost) SetupWithManager(ctx context.Context, m ctrl.Manager) error {
	if err := m.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameField, func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	}); err != nil {
		return fmt.Errorf("indexing pods by their node: %w", err)
	}
	pods := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.(*corev1.Pod).Spec.NodeName != "" && ofReplicaSet(o) })
	return ctrl.NewControllerManagedBy(m).Named("deletion-cost").
		For(&corev1.Pod{}, builder.WithPredicates(pods)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.podsOn), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Complete(endsWithin(stuckAfter, "deletion-cost", r, die))
}

// Transform removes from a pod or a node what no reconciler reads before the object enters the cache of Client. With 50,000
// pods, the heap has 107 MiB then. It records whether Karpenter is the manager of a pod's cost. The API server takes the name
// of a manager from the client's user agent. Source: sigs.k8s.io/karpenter/pkg/operator, AppName.
func (r *DeletionCost) Transform(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if ok && slices.ContainsFunc(pod.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "karpenter" && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.String(), `"f:`+scalein.CostAnnotation+`"`)
	}) {
		r.karpenter.Store(true)
	}
	if ok {
		pod.Labels, pod.Spec = nil, corev1.PodSpec{NodeName: pod.Spec.NodeName, SchedulerName: pod.Spec.SchedulerName, Tolerations: pod.Spec.Tolerations}
		status := &pod.Status
		*status = corev1.PodStatus{Phase: status.Phase, Reason: status.Reason, ContainerStatuses: status.ContainerStatuses, InitContainerStatuses: status.InitContainerStatuses}
	} else if node, ok := o.(*corev1.Node); ok {
		node.Annotations, node.Status = nil, corev1.NodeStatus{NodeInfo: node.Status.NodeInfo}
	}
	return cache.TransformStripManagedFields()(o)
}

func ofReplicaSet(o client.Object) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && owner.Kind == "ReplicaSet"
}

// podsOn returns requests for the pods of ReplicaSets on the node.
func (r *DeletionCost) podsOn(ctx context.Context, node client.Object) []reconcile.Request {
	return requestsFor(ctx, r.Client, node, func(pod *corev1.Pod) bool { return ofReplicaSet(pod) }, client.MatchingFields{nodeNameField: node.GetName()})
}

// Reconcile corrects the annotations of one pod.
func (r *DeletionCost) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, request.NamespacedName, pod); err != nil {
		r.forget(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || !ofReplicaSet(pod) || !r.isFor(pod) && len(scalein.Undo(pod.Annotations)) == 0 {
		return reconcile.Result{}, nil
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if _, ours := pod.Annotations[scalein.OwnCostAnnotation]; (!ours || pod.Spec.SchedulerName != r.SchedulerName) && r.Pools.Of(node) == pool.None {
		return reconcile.Result{}, nil
	}
	if r.Pools.IsBurstNode(node) && !refusal.Started(pod) {
		return reconcile.Result{}, nil // the start of the pod triggers another call
	}
	if wanted := r.wanted(request.NamespacedName, pod, node); len(wanted) > 0 {
		return r.annotate(ctx, pod, wanted)
	}
	return reconcile.Result{}, nil
}

// wanted returns the annotations to change on the pod, with the new values. An empty value means that the annotation is
// removed.
func (r *DeletionCost) wanted(name types.NamespacedName, pod *corev1.Pod, node *corev1.Node) map[string]string {
	if !r.isFor(pod) {
		if !r.first(&r.undone, name, pod.UID) {
			return nil
		}
		return scalein.Undo(pod.Annotations)
	}
	wanted, foreign := scalein.Annotations(r.Pools, node, pod.Annotations)
	if r.karpenter.Load() && node.Labels[nodegroups.KarpenterNodePoolLabel] != "" && !r.Pools.IsBurstNode(node) {
		if (foreign || wanted[scalein.CostAnnotation] != "") && r.first(&r.reported, name, pod.UID) {
			costWrites.WithLabelValues(resultLeft).Inc()
			if r.first(&r.reported, types.NamespacedName{}, "karpenter") { // one event is enough
				r.Recorder.Eventf(pod, corev1.EventTypeWarning, "DeletionCostsByKarpenter", "Karpenter sets the annotation %s of pods on its VMs, so the controller no longer sets it there. "+
					"In burst pools, it still does. To order the pools' VMs, too, turn off Karpenter's feature gate PodDeletionCostManagement", scalein.CostAnnotation)
			}
		}
		delete(wanted, scalein.CostAnnotation)
		delete(wanted, scalein.OwnCostAnnotation)
		return wanted
	}
	if foreign && r.first(&r.reported, name, pod.UID) {
		r.Recorder.Eventf(pod, corev1.EventTypeNormal, "DeletionCostKept",
			"another client changed the annotation %s, so the controller keeps its value. To have the controller set it again, remove this annotation and %s", scalein.CostAnnotation, scalein.OwnCostAnnotation)
	}
	return wanted
}

// annotate writes the annotations on the pod. The patch fails with a conflict if the pod has changed since it was read.
func (r *DeletionCost) annotate(ctx context.Context, pod *corev1.Pod, wanted map[string]string) (reconcile.Result, error) {
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	for key, value := range wanted {
		if value == "" {
			delete(pod.Annotations, key)
		} else {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value)
		}
	}
	name := client.ObjectKeyFromObject(pod)
	err := r.Client.Patch(ctx, pod, patch)
	countCostWrite(err)
	if err != nil {
		r.retry(name)
		return notWritten(fmt.Errorf("annotating pod %s: %w", name, err))
	}
	log.FromContext(ctx).V(1).Info("Changed the pod's deletion cost", "pod", name, "annotations", wanted)
	return reconcile.Result{}, nil
}

// isFor reports whether the pod gets a deletion cost.
func (r *DeletionCost) isFor(pod *corev1.Pod) bool {
	return pod.Spec.SchedulerName == r.SchedulerName || r.Others && pod.Namespace != metav1.NamespaceSystem
}

// first adds the pod to the map. It returns true if the map did not have the pod yet.
func (r *DeletionCost) first(among *map[types.NamespacedName]types.UID, name types.NamespacedName, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *among == nil {
		*among = map[types.NamespacedName]types.UID{}
	}
	was := (*among)[name] == uid
	(*among)[name] = uid
	return !was
}

// retry deletes the pod from undone after a failed patch, so that the next Reconcile tries the removal again.
func (r *DeletionCost) retry(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.undone, name)
}

func (r *DeletionCost) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reported, name)
	delete(r.undone, name)
}
