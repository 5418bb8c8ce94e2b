// Package lost evicts pods that a burst pool's provider refused, or that did not start in time on a burst node.
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

// evictionTimeout is the timeout of one eviction. Without a timeout, the client retries a refused eviction by itself
// for minutes.
const evictionTimeout = 5 * time.Second

// Reconciler evicts pods that failed to start on a burst node. These are the pods that the provider refused, and the
// pods that did not start within their burst pool's startWithin. A refused pod may stay Pending for ever: its owner
// does not replace a Pending pod, and the API does not show whether the provider retries. After the eviction, the owner
// creates a new pod, and the scheduler selects a node for the new pod. Reconciler evicts only pods of our own
// scheduler, and only if their owner replaces evicted pods. If a Job's pod would never end by itself, Reconciler sets
// the phase of the pod to Failed (see neverEnds).
type Reconciler struct {
	Client client.Client
	Pools  pool.List
	// SchedulerName is the scheduler name of our profile.
	SchedulerName string
	// Recorder writes an event on an evicted pod.
	Recorder record.EventRecorder
	Clock    clock.Clock
	Progress *watchdog.Watch

	failures  *podFailures
	forbidden bool // the controller has logged that it has no right to evict pods
}

var _ reconcile.Reconciler = &Reconciler{}

// replacingControllers lists the kinds of controllers that replace an evicted pod, with their API versions.
var replacingControllers = map[string]string{"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1", "Job": "batch/v1"}

// SetupWithManager has the manager call the reconciler for every bound pod of our scheduler until the pod has started.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	r.failures = newPodFailures(r.Clock)
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
	// podFailures is not safe for concurrent use. By default, controller-runtime reconciles one pod at a time.
	return ctrl.NewControllerManagedBy(m).Named("lost").For(&corev1.Pod{}, builder.WithPredicates(ours, young)).Complete(r.Progress.Reconciler("lost", r))
}

// Reconcile checks one pod. If necessary, it evicts the pod or sets the phase of the pod to Failed.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, request.NamespacedName, pod); err != nil {
		r.failures.forget(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	i, err := r.burstPoolOf(ctx, pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if known, never := neverEnds(pod); never && i != pool.None {
		r.failures.forget(request.NamespacedName)
		return r.end(ctx, pod, known)
	}
	switch {
	case i == pool.None || over(pod) || !replaced(pod, owner):
		r.failures.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	case refusal.Began(pod):
		r.failures.started(request.NamespacedName, pod.UID, owner.UID, r.Pools.At(i).StartWithin(), r.Clock.Now())
		return reconcile.Result{}, nil
	}
	now := r.Clock.Now()
	refused, isRefused := refusal.Of(pod)
	young := r.failures.see(request.NamespacedName, pod.UID, owner.UID, isRefused, now)
	due, minWait := r.failures.due(young, owner.UID, r.Pools.At(i).StartWithin())
	if due.IsZero() {
		return reconcile.Result{}, nil
	}
	if wait := due.Sub(now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if r.failures.denials.IsInBackOffSinceUpdate(string(pod.UID), now) { // flowcontrol.Backoff has no method for the remaining time
		return reconcile.Result{RequeueAfter: evictionRetry}, nil
	}
	if wait := r.failures.delay(i, refused.Cause, now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	why := fmt.Sprintf("it did not start within %s", minWait)
	if isRefused {
		why = fmt.Sprintf("the provider refused it: %s: %s", cmp.Or(refused.Code, "no known error code"), cmp.Or(refused.Message, pod.Status.Message))
	}
	return r.evict(ctx, pod, i, young, why)
}

// burstPoolOf returns the index of the burst pool of the pod's node. It returns None if the node is in no burst pool,
// or if the pod belongs to another scheduler.
func (r *Reconciler) burstPoolOf(ctx context.Context, pod *corev1.Pod) (int, error) {
	if pod.Spec.NodeName == "" || pod.Spec.SchedulerName != r.SchedulerName {
		return pool.None, nil
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		return pool.None, client.IgnoreNotFound(err) // if the node no longer exists, Kubernetes deletes the pod
	}
	if i := r.Pools.Of(node.Labels); r.Pools.IsBurst(i) {
		return i, nil
	}
	return pool.None, nil
}

// replaced reports whether the pod's owner replaces the pod after an eviction. It ignores annotations that protect
// running pods, such as cluster-autoscaler.kubernetes.io/safe-to-evict, because the pod never ran.
func replaced(pod *corev1.Pod, owner *metav1.OwnerReference) bool {
	return owner != nil && (replacingControllers[owner.Kind] == owner.APIVersion || pod.Annotations[returnplan.Annotation] == returnplan.Always)
}

// evict evicts the pod. The API server refuses the eviction if the pod has changed since it was read, or if a
// PodDisruptionBudget does not allow the eviction.
func (r *Reconciler) evict(ctx context.Context, pod *corev1.Pod, i int, young *notStartedPod, why string) (reconcile.Result, error) {
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
		evictedPods.WithLabelValues(in, reason).Inc()
		r.failures.evicted(young, metav1.GetControllerOfNoCopy(pod).UID, now)
		logger.Info("Evicted a lost pod from a burst pool")
		r.Recorder.Eventf(pod, corev1.EventTypeWarning, "BurstEvicted", "%s", controller.Short(fmt.Sprintf("evicted from burst pool %s: %s", in, why)))
		return reconcile.Result{}, nil
	case apierrors.IsNotFound(err):
		r.failures.forget(name)
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: controller.ConflictRetry}, nil // the pod has changed, and may have started
	case apierrors.IsTooManyRequests(err):
		pause := r.failures.denied(young, now)
		logger.Info("A lost pod is not evicted yet: the API server refused the eviction", "answer", err.Error(), "again", pause)
		return reconcile.Result{RequeueAfter: pause}, nil
	case apierrors.IsForbidden(err):
		if !r.forbidden {
			logger.Error(err, "Lost pods cannot be evicted from burst pools. The controller needs the right to create pods/eviction, as in manifests/rbac/controller-write.yaml, "+
				"and no admission rule may deny it")
			r.forbidden = true
		}
		return reconcile.Result{RequeueAfter: r.failures.denied(young, now)}, nil
	}
	return reconcile.Result{}, fmt.Errorf("evicting pod %s: %w", name, err)
}
