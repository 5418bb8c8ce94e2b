package providers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
)

const (
	// lostInterval is the time between two looks for lost pods.
	lostInterval = time.Second
	// evictionsAtOnce limits the evictions from one burst pool without a pause between them. Further evictions have a
	// pause between them. refusingPause is for pods whose replacements do not go to the same pool: the provider refused
	// them because of the pool, which closes, or because of the pod's template, which is ineligible then. This pause
	// protects the API server. openPause is for all others, and allows 20 evictions in 5 minutes: each replacement may
	// be another container group, and Azure allows 100 creates of these in 5 minutes.
	evictionsAtOnce          = 10
	refusingPause, openPause = time.Second, 30 * time.Second
	// evictionRetry is the first backoff after the API server refused an eviction, and maxEvictionRetry the longest.
	evictionRetry, maxEvictionRetry = 10 * time.Second, 10 * time.Minute
	// writeTimeout is the timeout of one eviction or change of a status. Without a timeout, the client retries a refused
	// eviction by itself for minutes.
	writeTimeout = 5 * time.Second
	// endsWithin is the time that a Job has to remove its finalizer from a pod after the kubelet has deleted the pod.
	endsWithin = 10 * time.Second

	// eventEvicted is the reason of the event on a lost pod that was evicted.
	eventEvicted = "BurstEvicted"
	// These are the values of the label reason of Evictions.
	reasonRefused, reasonLate = "refused", "late"
)

// Evictions counts the lost pods that were evicted.
var Evictions = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "burst_evictions_total",
	Help:      "Pods that were evicted from a burst pool so that their owners replace them, by reason: refused (by the provider) or late (not started within startWithin).",
}, []string{"pool", "reason"})

// replacingControllers lists the kinds of controllers that replace an evicted pod, with their API versions.
var replacingControllers = map[string]string{"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1", "Job": "batch/v1"}

// lost evicts pods that failed to start on a burst node. These are the pods that the provider refused, and the pods that
// did not start within their burst pool's startWithin. A refused pod may stay Pending for ever: its owner does not
// replace a Pending pod, and the API does not show whether the provider retries. After the eviction, the owner creates a
// new pod, and the scheduler selects a node for the new pod. lost evicts only pods of our own scheduler, and only if
// their owner replaces evicted pods. If a Job's pod would never end by itself, lost sets the phase of the pod to Failed
// (see neverEnds). It is not safe for concurrent use.
type lost struct {
	*Providers
	client    typedcorev1.PodsGetter
	denials   *flowcontrol.Backoff // backoffs after the API server refused to evict a pod, by the pod's UID, or to end it
	limiters  map[limiterKey]*rate.Limiter
	forbidden bool // it was logged that this scheduler has no right to evict pods
}

// limiterKey identifies the rate limiter of evictions from the burst pool with an index.
type limiterKey struct {
	pool  int
	pause time.Duration // refusingPause or openPause
}

func newLost(p *Providers, client typedcorev1.PodsGetter) *lost {
	denials := flowcontrol.NewBackOff(evictionRetry, maxEvictionRetry)
	denials.Clock = p.config.Clock
	for i := range p.config.Pools.Burst() {
		for _, reason := range []string{reasonRefused, reasonLate} {
			Evictions.WithLabelValues(p.config.Pools.At(i).Name, reason).Add(0) // Prometheus counts no increase if the first value of a series is 1
		}
	}
	return &lost{Providers: p, client: client, denials: denials, limiters: map[limiterKey]*rate.Limiter{}}
}

// takeBack evicts the lost pods that are due, and sets the phase of those to Failed that never end by themselves.
func (l *lost) takeBack(ctx context.Context) {
	if !l.config.Leading() {
		return
	}
	l.denials.GC()
	now := l.config.Clock.Now()
	for i := range l.config.Pools.Burst() {
		for _, gone := range l.lostIn(i, now) {
			pod, err := l.config.Pods.Pods(gone.Namespace).Get(gone.Name)
			if err != nil || pod.UID != gone.UID || pod.Spec.SchedulerName != l.config.SchedulerName || ctx.Err() != nil {
				continue
			}
			if known, never := neverEnds(pod); never && !now.Before(known) {
				l.end(ctx, pod)
			}
			// The pod may have changed since the breaker saw it, and earlier evictions may have taken long.
			if pod.DeletionTimestamp == nil && !refusal.Began(pod) && refusal.Refused(pod) == (gone.Refusal != nil) && replaced(pod) && l.due(i, &gone, now) {
				l.evict(ctx, i, &gone, pod)
			}
		}
	}
}

func (p *Providers) lostIn(i int, now time.Time) []breaker.Lost {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trackers[i].Lost(now)
}

// replaced reports whether the pod's owner replaces the pod after an eviction. It ignores annotations that protect
// running pods, such as cluster-autoscaler.kubernetes.io/safe-to-evict, because the pod never ran.
func replaced(pod *v1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && (replacingControllers[owner.Kind] == owner.APIVersion || pod.Annotations[returnplan.Annotation] == returnplan.Always)
}

// due reports whether the backoff of the pod has ended, and the rate limits allow an eviction from the pool with index i.
func (l *lost) due(i int, gone *breaker.Lost, now time.Time) bool {
	if l.denials.IsInBackOffSinceUpdate(string(gone.UID), now) {
		return false
	}
	key := limiterKey{i, openPause}
	if gone.Refusal != nil && (gone.Refusal.Cause == refusal.PoolError || gone.Refusal.Cause == refusal.PodError) {
		key.pause = refusingPause
	}
	if l.limiters[key] == nil {
		l.limiters[key] = rate.NewLimiter(rate.Every(key.pause), evictionsAtOnce)
	}
	return l.limiters[key].AllowN(now, 1)
}

// evict evicts the pod. The API server refuses the eviction if the pod has changed since it was read, or if a
// PodDisruptionBudget does not allow the eviction.
func (l *lost) evict(ctx context.Context, i int, gone *breaker.Lost, pod *v1.Pod) {
	in, reason, why := l.config.Pools.At(i).Name, reasonLate, fmt.Sprintf("it did not start within %s", gone.Within)
	if r := gone.Refusal; r != nil {
		reason, why = reasonRefused, fmt.Sprintf("the provider refused it: %s: %s", cmp.Or(r.Code, "no known error code"), cmp.Or(r.Message, pod.Status.Message))
	}
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod), "pool", in, "node", pod.Spec.NodeName, "why", why)
	limited, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := l.client.Pods(pod.Namespace).EvictV1(limited, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}},
	})
	if err == nil {
		l.forbidden = false
		l.mu.Lock()
		l.trackers[i].Evicted(gone, l.config.Clock.Now())
		l.mu.Unlock()
		Evictions.WithLabelValues(in, reason).Inc()
		logger.Info("Evicted a lost pod from a burst pool")
		l.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, eventEvicted, "Evicting", "evicted from burst pool %s: %s", in, why)
		return
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return // the pod is gone, or has changed and may have started
	}
	l.denials.Next(string(pod.UID), l.config.Clock.Now())
	switch {
	case apierrors.IsTooManyRequests(err):
		logger.Info("A lost pod is not evicted yet: the API server refused the eviction", "answer", err.Error(), "again", l.denials.Get(string(pod.UID)))
	case !apierrors.IsForbidden(err):
		logger.Error(err, "A lost pod could not be evicted from a burst pool")
	case !l.forbidden:
		l.forbidden = true
		logger.Error(err, "Lost pods cannot be evicted from burst pools. The scheduler needs the right to create pods/eviction, as in manifests/rbac/write.yaml, "+
			"and no admission rule may deny it")
	}
}

// neverEnds reports whether the pod will never end by itself. known is the time from which on this is certain. A Job
// with podReplacementPolicy Failed, which a podFailurePolicy implies, replaces a pod only after the pod has failed.
// Until then, the Job keeps its finalizer on the pod. When a kubelet ends a pod, it sets the phase of the pod to
// Failed. When virtual-kubelet deletes a pod that never started, it does not set the phase (v1.11, node/pod.go), and
// the Job would wait for ever.
func neverEnds(pod *v1.Pod) (known time.Time, is bool) {
	grace := pod.DeletionGracePeriodSeconds
	if pod.DeletionTimestamp == nil || grace == nil || *grace > 0 || pod.Status.Phase != v1.PodPending || refusal.Began(pod) ||
		!slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		return time.Time{}, false
	}
	return pod.DeletionTimestamp.Add(endsWithin), true
}

// end sets the phase of a pod that never ends by itself to Failed. A pod that has changed is tried again.
func (l *lost) end(ctx context.Context, pod *v1.Pod) {
	backoff := "end/" + string(pod.UID) // beside that of its eviction
	if l.denials.IsInBackOffSinceUpdate(backoff, l.config.Clock.Now()) {
		return
	}
	limited, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}, "status": map[string]any{"phase": v1.PodFailed}}) // does not fail
	_, err := l.client.Pods(pod.Namespace).Patch(limited, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod))
	switch {
	case err == nil:
		logger.Info("Marked a pod as failed: it was deleted from a burst node before it started, and its Job waits until the pod fails")
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		l.denials.Next(backoff, l.config.Clock.Now())
		logger.Error(err, "A pod could not be marked as failed, so that its Job replaces it")
	}
}
