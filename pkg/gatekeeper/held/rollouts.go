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
	// rolloutRetryInterval is the shortest time between retries of a pod whose rollout progresses. If many pods wait,
	// TryEach makes the time longer.
	rolloutRetryInterval = time.Second
	// TryEach is multiplied by the number of pods that wait for a rollout. If the product is longer than
	// rolloutRetryInterval, it is the time between retries of a pod. If 100 pods wait, each pod is retried every 4 s.
	// In a large cluster, one retry takes some milliseconds.
	TryEach = 40 * time.Millisecond
	// replicaSetLag is how long a pod waits for the informer to deliver the pod's ReplicaSet.
	replicaSetLag = 5 * time.Second
	// maxUnknownReplicaSets is the maximum number of pods with an unknown ReplicaSet that Rollouts remembers.
	maxUnknownReplicaSets = 10000
)

// Reservation is capacity that is kept for a new pod of a rollout, or for a pod that preempted other pods. The capacity
// becomes free when other pods have terminated.
type Reservation struct {
	gate.Wait
	// Node is the node with the capacity; empty if the pod waits only until its ReplicaSet is known.
	Node string
	// Terminating is set if all pods that the reservation waits for are already terminating.
	Terminating bool
	// Since is when the pod first waited for pods that were not terminating yet; zero if the pod never waited for such
	// pods.
	Since time.Time
	// Deployment and ReplicaSet are the keys of the pod's Deployment and ReplicaSet (refusal.KeyOf); empty if the pod does
	// not wait for a rollout.
	Deployment, ReplicaSet types.UID
}

// asWait returns the Wait of the reservation. If the reservation is nil, the Wait is empty.
func (p *Reservation) asWait() gate.Wait {
	if p == nil {
		return gate.Wait{}
	}
	return p.Wait
}

// ReservedPod is a held pod with its reservation.
type ReservedPod struct {
	Pod *v1.Pod
	Reservation
}

// RolloutStatus shows whether a pod is a new pod of a rollout. For all other pods, the status is empty.
type RolloutStatus struct {
	// Of is the pod's rollout; nil if there is none.
	Of *rollout.Rollout
	// Unknown is set while the pod waits for the informer to deliver its current ReplicaSet, for at most replicaSetLag.
	// It reserves no node.
	Unknown *Reservation
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
// of ReplicaSets. When a ReplicaSet changes, changed is called with the key of the ReplicaSet's controller. If the
// scheduler has no permission to list and watch Deployments, Rollouts finds no rollouts.
func NewRollouts(ctx context.Context, client kubernetes.Interface, scheduler informers.SharedInformerFactory, changed func(deployment types.UID)) (*Rollouts, error) {
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
	if _, err := replicaSets.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			changed(refusal.OwnerOf(obj.(*appsv1.ReplicaSet)))
		},
	}); err != nil {
		return nil, fmt.Errorf("watching ReplicaSets: %w", err)
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
		reason := gate.ReasonReplicaSetUnknown
		reason.Detail = "ReplicaSet " + owner.Name
		return RolloutStatus{Unknown: &Reservation{Wait: gate.Wait{Reason: reason, Until: now.Add(retryStale)}}}
	}
	r.stale.Remove(pod.UID)
	deployment := metav1.GetControllerOf(own)
	if deployment == nil || deployment.Kind != "Deployment" {
		return RolloutStatus{}
	}
	d, err := r.deployments.Deployments(pod.Namespace).Get(deployment.Name)
	if err != nil || d.UID != deployment.UID {
		return RolloutStatus{}
	}
	objs, err := r.replicaSets.ByIndex(byController, string(refusal.KeyOf(d.Namespace, d.UID)))
	if err != nil {
		return RolloutStatus{} // cannot happen, because the index exists
	}
	all := make([]*appsv1.ReplicaSet, len(objs))
	for i := range objs {
		all[i] = objs[i].(*appsv1.ReplicaSet)
	}
	return RolloutStatus{Of: rollout.Of(d, all, own.UID)}
}
