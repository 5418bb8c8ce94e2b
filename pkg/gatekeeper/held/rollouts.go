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
	// stirredAgain is when a pod that waits for a rollout is tried again at the earliest if the rollout changes. It is
	// longer where many pods wait.
	stirredAgain = time.Second
	// TryEach is how much time each of the pods has that wait for a rollout to go on: a try costs some milliseconds in a
	// large cluster.
	TryEach = 40 * time.Millisecond
	// replicaSetLag is how much later than its pods the scheduler may hear of a ReplicaSet.
	replicaSetLag = 5 * time.Second
	// maxUnseen bounds how many pods are remembered whose ReplicaSet is not known.
	maxUnseen = 10000
)

// Promise is what a new pod of a rollout waits for: a place that it will, or may, have once other pods have ended.
type Promise struct {
	gate.Wait
	// Node is where the place is; empty if the scheduler has only not heard of the pod's ReplicaSet yet.
	Node string
	// Ending says that all that the pod waits for is ending already.
	Ending bool
	// Since is since when the pod has been waiting for what is not ending; zero if it has not.
	Since time.Time
	// Deployment and ReplicaSet are the pod's own.
	Deployment, ReplicaSet types.UID
}

// asWait is what the gate is told of the promise; that there is none, of nil.
func (p *Promise) asWait() gate.Wait {
	if p == nil {
		return gate.Wait{}
	}
	return p.Wait
}

// PromisedPod is a held pod with what it was promised.
type PromisedPod struct {
	Pod *v1.Pod
	Promise
}

// Surge is what is known of whether a pod is a new one of a rollout: it is of one, it is of none, or its ReplicaSet is
// not known yet.
type Surge struct {
	// Of is the rollout, if it is of one.
	Of *rollout.Rollout
	// Unseen has it wait for a moment, if its ReplicaSet is not known yet.
	Unseen *Promise
}

// Possible reports whether the pod is, or may be, a new one of a rollout.
func (s Surge) Possible() bool { return s.Of != nil || s.Unseen != nil }

// Rollouts tells which pods are the new ones of a rollout. A nil one knows of none.
type Rollouts struct {
	deployments appslisters.DeploymentLister
	replicaSets cache.Indexer        // with the index byController
	hasSynced   cache.InformerSynced // the Deployments are known
	unseen      *lru.Cache           // when a pod was first asked about whose ReplicaSet is not known, by our clock: the API server has another
}

// waitsFor reports whether the pod's ReplicaSet, which is not known at the time now, may still become so.
func (r *Rollouts) waitsFor(pod types.UID, now time.Time) bool {
	first, ok := r.unseen.Get(pod)
	if !ok {
		r.unseen.Add(pod, now)
		return true
	}
	return now.Sub(first.(time.Time)) <= replicaSetLag
}

// byController is the index of ReplicaSets by the UID of what controls them.
const byController = "poolpriority.dev/controller"

func controllerIndex(obj any) ([]string, error) {
	if owner := metav1.GetControllerOfNoCopy(obj.(*appsv1.ReplicaSet)); owner != nil {
		return []string{string(owner.UID)}, nil
	}
	return nil, nil
}

// Synced reports whether the Deployments are known.
func (r *Rollouts) Synced() bool { return r == nil || r.hasSynced() }

// NewRollouts starts to watch Deployments, of which little is kept, and uses the scheduler's own view of ReplicaSets.
// changed is called with the UID of a Deployment one of whose ReplicaSets changed. A scheduler that may not read
// Deployments sees no rollouts.
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
		unseen:      lru.New(maxUnseen),
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

// Of returns what is known of the pod at the time now.
func (r *Rollouts) Of(pod *v1.Pod, now time.Time) Surge {
	owner := metav1.GetControllerOf(pod)
	if r == nil || owner == nil || owner.Kind != "ReplicaSet" {
		return Surge{}
	}
	obj, _, _ := r.replicaSets.GetByKey(pod.Namespace + "/" + owner.Name) // does not fail
	own, known := obj.(*appsv1.ReplicaSet)
	if !known || own.UID != owner.UID || own.Spec.Replicas != nil && *own.Spec.Replicas == 0 {
		// It wants no pod, as far as is known, and has one: what is known is old. Or it does since, and the pod will go.
		if !r.waitsFor(pod.UID, now) {
			return Surge{}
		}
		reason := gate.ReasonEarly
		reason.Detail = "ReplicaSet " + owner.Name
		return Surge{Unseen: &Promise{Wait: gate.Wait{Reason: reason, Until: now.Add(retryUnseen)}}}
	}
	r.unseen.Remove(pod.UID)
	deployment := metav1.GetControllerOf(own)
	if deployment == nil || deployment.Kind != "Deployment" {
		return Surge{}
	}
	d, err := r.deployments.Deployments(pod.Namespace).Get(deployment.Name)
	if err != nil || d.UID != deployment.UID {
		return Surge{}
	}
	objs, err := r.replicaSets.ByIndex(byController, string(d.UID))
	if err != nil {
		return Surge{} // the index is there
	}
	all := make([]*appsv1.ReplicaSet, len(objs))
	for i := range objs {
		all[i] = objs[i].(*appsv1.ReplicaSet)
	}
	return Surge{Of: rollout.Of(d, all, own.UID)}
}
