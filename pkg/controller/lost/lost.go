// Package lost takes back pods that a burst pool's provider refused, or that did not start there in time.
package lost

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/controller/watchdog"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
)

// evictionTimeout is how long the API server may take to answer: the client tries again by itself otherwise, for minutes.
const evictionTimeout = 5 * time.Second

// Reconciler takes back pods that are lost on a burst node: those that the provider refused, whatever for, and those that did not start
// within their pool's startWithin. A pod that was refused is not tried again by the provider in a way that the API would hear of, and its
// owner is content with it. It is evicted, so that its owner makes another, for which the scheduler decides anew. It takes back
// pods of our own scheduler that something replaces, and no others. It also sees to it that those of Jobs end (unended.go).
type Reconciler struct {
	Client client.Client
	Pools  pool.List
	// SchedulerName is that of our scheduler's profile.
	SchedulerName string
	// Recorder says on a pod why it was taken back.
	Recorder record.EventRecorder
	Clock    clock.Clock
	Progress *watchdog.Watch

	losses    *losses
	forbidden bool // it was said that pods may not be evicted
}

var _ reconcile.Reconciler = &Reconciler{}

// replaceLost are the controllers that replace a lost pod by themselves once it is gone.
var replaceLost = map[string]string{"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1", "Job": "batch/v1"}

// SetupWithManager has the manager call the reconciler for every bound pod of our scheduler until it has started.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	r.losses = newLosses(r.Clock)
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		pod := o.(*corev1.Pod)
		return pod.Spec.NodeName != "" && pod.Spec.SchedulerName == r.SchedulerName
	})
	young := predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return !refusal.Started(e.Object.(*corev1.Pod)) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !refusal.Started(e.ObjectOld.(*corev1.Pod)) || !refusal.Started(e.ObjectNew.(*corev1.Pod))
		},
	}
	// One pod at a time, which is what controller-runtime does unless it is told otherwise: the losses are not for several.
	return ctrl.NewControllerManagedBy(m).Named("lost").For(&corev1.Pod{}, builder.WithPredicates(ours, young)).Complete(r.Progress.Reconciler("lost", r))
}

// Reconcile looks at one pod.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, request.NamespacedName, pod); err != nil {
		r.losses.forget(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	i, err := r.burstPoolOf(ctx, pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if known, never := unended(pod); never && i != pool.None {
		r.losses.forget(request.NamespacedName)
		return r.end(ctx, pod, known)
	}
	switch {
	case i == pool.None || over(pod) || !replaced(pod, owner):
		r.losses.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	case refusal.Began(pod):
		r.losses.started(request.NamespacedName, pod.UID, owner.UID, r.Pools.At(i).StartWithin(), r.Clock.Now())
		return reconcile.Result{}, nil
	}
	now := r.Clock.Now()
	refused, isRefused := refusal.Of(pod)
	young := r.losses.see(request.NamespacedName, pod.UID, owner.UID, isRefused, now)
	due, patience := r.losses.due(young, owner.UID, r.Pools.At(i).StartWithin())
	if due.IsZero() {
		return reconcile.Result{}, nil
	}
	if wait := due.Sub(now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if r.losses.denials.IsInBackOffSinceUpdate(string(pod.UID), now) {
		return reconcile.Result{RequeueAfter: evictionRetry}, nil
	}
	if wait := r.losses.turn(i, now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	why := fmt.Sprintf("it did not start within %s", patience)
	if isRefused {
		why = fmt.Sprintf("the provider refused it: %s: %s", cmp.Or(refused.Code, "no code that is known"), cmp.Or(refused.Message, pod.Status.Message))
	}
	return r.takeBack(ctx, pod, i, young, why)
}

// burstPoolOf returns the index of the burst pool that the pod is in, or None if it is in none, or is not of our scheduler.
func (r *Reconciler) burstPoolOf(ctx context.Context, pod *corev1.Pod) (int, error) {
	if pod.Spec.NodeName == "" || pod.Spec.SchedulerName != r.SchedulerName {
		return pool.None, nil
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		return pool.None, client.IgnoreNotFound(err) // the pods of a node that is gone are deleted by Kubernetes
	}
	if i := r.Pools.Of(node.Labels); r.Pools.IsBurst(i) {
		return i, nil
	}
	return pool.None, nil
}

// replaced reports whether the pod's owner makes another in its place. What protects pods that run from being moved, such as
// cluster-autoscaler.kubernetes.io/safe-to-evict, says nothing of one that does not.
func replaced(pod *corev1.Pod, owner *metav1.OwnerReference) bool {
	return owner != nil && (replaceLost[owner.Kind] == owner.APIVersion || pod.Annotations[returnplan.Annotation] == returnplan.Always)
}

// takeBack evicts the pod, unless it has changed since it was looked at. PodDisruptionBudgets may refuse that.
func (r *Reconciler) takeBack(ctx context.Context, pod *corev1.Pod, i int, young *youngPod, why string) (reconcile.Result, error) {
	name, in := client.ObjectKeyFromObject(pod), r.Pools.At(i).Name
	logger := log.FromContext(ctx).WithValues("pool", in, "node", pod.Spec.NodeName, "why", why)
	limited, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	err := r.Client.SubResource("eviction").Create(limited, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}},
	})
	now := r.Clock.Now()
	switch {
	case err == nil:
		r.forbidden = false
		reason := reasonLate
		if !young.refused.IsZero() {
			reason = reasonRefused
		}
		takenBack.WithLabelValues(in, reason).Inc()
		r.losses.takenBack(young, metav1.GetControllerOfNoCopy(pod).UID, now)
		logger.Info("Took a lost pod back from a burst pool")
		r.Recorder.Eventf(pod, corev1.EventTypeWarning, "TakenBack", "%s", controller.Short(fmt.Sprintf("evicted from burst pool %s: %s", in, why)))
		return reconcile.Result{}, nil
	case apierrors.IsNotFound(err):
		r.losses.forget(name)
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: controller.ConflictRetry}, nil // it may have started
	case apierrors.IsTooManyRequests(err):
		pause := r.losses.denied(young, now)
		logger.Info("A lost pod is not taken back yet: its eviction was refused", "answer", err.Error(), "again", pause)
		return reconcile.Result{RequeueAfter: pause}, nil
	case apierrors.IsForbidden(err):
		if !r.forbidden {
			logger.Error(err, "Lost pods cannot be taken back from burst pools: the controller needs the right to create pods/eviction, as in manifests/rbac/controller-write.yaml, "+
				"and no admission rule that denies it")
			r.forbidden = true
		}
		return reconcile.Result{RequeueAfter: r.losses.denied(young, now)}, nil
	}
	return reconcile.Result{}, fmt.Errorf("evicting pod %s: %w", name, err)
}
