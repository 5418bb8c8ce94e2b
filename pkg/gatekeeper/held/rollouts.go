package held

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// replicaSetLag is how long a pod waits for the informer to deliver the pod's ReplicaSet.
	replicaSetLag = 5 * time.Second
	// maxUnknownReplicaSets is the maximum number of pods with an unknown ReplicaSet that Rollouts remembers.
	maxUnknownReplicaSets = 10000
)

// RolloutStatus shows whether a pod is a new pod of a rollout. For all other pods, the status is empty.
type RolloutStatus struct {
	// Of is the pod's rollout; nil if there is none.
	Of *rollout.Rollout
	// Unknown is set while the pod waits for the informer to deliver its current ReplicaSet, for at most replicaSetLag.
	Unknown *gate.Wait
}

// Possible reports whether the pod is, or may be, a new pod of a rollout.
func (s RolloutStatus) Possible() bool { return s.Of != nil || s.Unknown != nil }

// Rollouts finds the new pods of rollouts. A nil Rollouts finds no pods.
type Rollouts struct {
	deployments appslisters.DeploymentLister
	replicaSets cache.Indexer        // with the index byController
	hasSynced   cache.InformerSynced // reports whether the informer of Deployments has synced
	stale       *lru.Cache           // when each pod with an unknown ReplicaSet was first checked, by the scheduler's clock
}

// waitsFor reports whether the pod waits longer for its ReplicaSet. The ReplicaSet must be unknown at the time now.
func (r *Rollouts) waitsFor(pod types.UID, now time.Time) bool {
	first, ok := r.stale.Get(pod)
	if !ok {
		r.stale.Add(pod, now)
		return true
	}
	return now.Sub(first.(time.Time)) <= replicaSetLag
}

// byController is the name of the informer's index of ReplicaSets by the key of their controller (refusal.OwnerOf).
const byController = "poolpriority.dev/controller"

func controllerIndex(obj any) ([]string, error) {
	return []string{string(refusal.OwnerOf(obj.(*appsv1.ReplicaSet)))}, nil
}

// Synced reports whether the informer of Deployments has synced.
func (r *Rollouts) Synced() bool { return r == nil || r.hasSynced() }

// NewRollouts starts an informer of Deployments that keeps only the needed fields. It uses the scheduler's own informer
// of ReplicaSets. If the scheduler has no permission to list and watch Deployments, Rollouts finds no rollouts.
func NewRollouts(ctx context.Context, client kubernetes.Interface, scheduler informers.SharedInformerFactory) (*Rollouts, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(func(obj any) (any, error) {
		if d, ok := obj.(*appsv1.Deployment); ok {
			d.ManagedFields, d.Annotations, d.Labels, d.Spec.Template = nil, nil, nil, v1.PodTemplateSpec{}
		}
		return obj, nil
	}))
	replicaSets := scheduler.Apps().V1().ReplicaSets().Informer()
	if err := replicaSets.AddIndexers(cache.Indexers{byController: controllerIndex}); err != nil {
		return nil, fmt.Errorf("indexing ReplicaSets: %w", err)
	}
	r := &Rollouts{
		stale:       lru.New(maxUnknownReplicaSets),
		deployments: factory.Apps().V1().Deployments().Lister(),
		replicaSets: replicaSets.GetIndexer(),
		hasSynced:   factory.Apps().V1().Deployments().Informer().HasSynced,
	}
	factory.Start(ctx.Done())
	return r, nil
}

// Of returns the rollout status of the pod at the time now.
func (r *Rollouts) Of(pod *v1.Pod, now time.Time) RolloutStatus {
	owner := metav1.GetControllerOf(pod)
	if r == nil || owner == nil || owner.Kind != "ReplicaSet" {
		return RolloutStatus{}
	}
	obj, _, _ := r.replicaSets.GetByKey(pod.Namespace + "/" + owner.Name) // does not fail
	own, known := obj.(*appsv1.ReplicaSet)
	if !known || own.UID != owner.UID || own.Spec.Replicas != nil && *own.Spec.Replicas == 0 {
		// The ReplicaSet is unknown, or it has the pod although it wants no pods. Either the informer is stale, or the
		// ReplicaSet controller is about to delete the pod.
		if !r.waitsFor(pod.UID, now) {
			return RolloutStatus{}
		}
		return RolloutStatus{Unknown: &gate.Wait{Reason: gate.ReasonReplicaSetUnknown.With("ReplicaSet %s", owner.Name), Until: now.Add(retryStale)}}
	}
	r.stale.Remove(pod.UID)
	of := metav1.GetControllerOf(own)
	if of == nil {
		return RolloutStatus{}
	}
	objs, _ := r.replicaSets.ByIndex(byController, string(refusal.KeyOf(pod.Namespace, of.UID))) // does not fail, because the index exists
	all := make([]*appsv1.ReplicaSet, len(objs))
	for i := range objs {
		all[i] = objs[i].(*appsv1.ReplicaSet)
	}
	if of.Kind == "Rollout" { // of Argo
		return RolloutStatus{Of: rollout.OfOwner(&metav1.ObjectMeta{Namespace: pod.Namespace, UID: of.UID}, all, own.UID)}
	}
	d, err := r.deployments.Deployments(pod.Namespace).Get(of.Name)
	if of.Kind != "Deployment" || err != nil || d.UID != of.UID {
		return RolloutStatus{}
	}
	return RolloutStatus{Of: rollout.Of(d, all, own.UID)}
}
