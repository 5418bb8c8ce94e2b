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
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// rolloutRetryInterval is the shortest time between retries of a pod whose rollout progresses. The time is longer
	// if many pods wait.
	rolloutRetryInterval = time.Second
	// TryEach is the time that each pod that waits for a rollout adds to the retry interval. If 100 pods wait, each is
	// tried every 4 s. One try takes some milliseconds in a large cluster.
	TryEach = 40 * time.Millisecond
	// replicaSetLag bounds how much later than its first pod a ReplicaSet may reach the informer.
	replicaSetLag = 5 * time.Second
	// maxUnknownReplicaSets bounds how many pods with an unknown ReplicaSet are remembered.
	maxUnknownReplicaSets = 10000
)

// Reservation is capacity that a new pod of a rollout, or a pod that preempted others, waits for. The capacity is free
// once other pods have terminated.
type Reservation struct {
	gate.Wait
	// Node has the capacity; empty if the pod only waits for its ReplicaSet to be known.
	Node string
	// Terminating is set if all pods that the reservation waits for are already terminating.
	Terminating bool
	// Since is when the pod began to wait for pods that are not terminating; zero if it does not.
	Since time.Time
	// Deployment and ReplicaSet are the UIDs of the pod's Deployment and ReplicaSet; empty if the pod does not wait for
	// a rollout.
	Deployment, ReplicaSet types.UID
}

// asWait returns the gate's input for the reservation, which is empty for nil.
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

// RolloutStatus shows whether a pod is a new pod of a rollout. It is empty if the pod is not.
type RolloutStatus struct {
	// Of is the pod's rollout; nil if there is none.
	Of *rollout.Rollout
	// Unknown is a short wait if the pod's ReplicaSet is not known yet; nil otherwise.
	Unknown *Reservation
}

// Possible reports whether the pod is, or may be, a new pod of a rollout.
func (s RolloutStatus) Possible() bool { return s.Of != nil || s.Unknown != nil }

// Rollouts finds the new pods of rollouts. A nil Rollouts finds none.
type Rollouts struct {
	deployments appslisters.DeploymentLister
	replicaSets cache.Indexer        // with the index byController
	hasSynced   cache.InformerSynced // the Deployments have synced
	stale       *lru.Cache           // when a pod with an unknown ReplicaSet was first checked, by our clock
}

// waitsFor reports whether the pod's ReplicaSet, which is unknown at the time now, may still arrive.
func (r *Rollouts) waitsFor(pod types.UID, now time.Time) bool {
	first, ok := r.stale.Get(pod)
	if !ok {
		r.stale.Add(pod, now)
		return true
	}
	return now.Sub(first.(time.Time)) <= replicaSetLag
}

// byController is the index of ReplicaSets by the UID of their controller.
const byController = "poolpriority.dev/controller"

func controllerIndex(obj any) ([]string, error) {
	if owner := metav1.GetControllerOfNoCopy(obj.(*appsv1.ReplicaSet)); owner != nil {
		return []string{string(owner.UID)}, nil
	}
	return nil, nil
}

// Synced reports whether the Deployments have synced.
func (r *Rollouts) Synced() bool { return r == nil || r.hasSynced() }

// NewRollouts starts to watch Deployments, stripped of what is not needed, and uses the scheduler's own informer of
// ReplicaSets. When a ReplicaSet changes, changed is called with its controller's UID. A scheduler without the right to
// list and watch Deployments finds no rollouts.
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
			if owner := metav1.GetControllerOf(obj.(*appsv1.ReplicaSet)); owner != nil {
				changed(owner.UID)
			}
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
		// If the ReplicaSet wants no pods but has this one, the informer is stale, or the pod will be deleted.
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
	objs, err := r.replicaSets.ByIndex(byController, string(d.UID))
	if err != nil {
		return RolloutStatus{} // does not happen: the index exists
	}
	all := make([]*appsv1.ReplicaSet, len(objs))
	for i := range objs {
		all[i] = objs[i].(*appsv1.ReplicaSet)
	}
	return RolloutStatus{Of: rollout.Of(d, all, own.UID)}
}
