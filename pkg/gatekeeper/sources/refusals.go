package sources

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// RefusedAt returns when Karpenter wrote that it cannot place the pod; zero if it did not, or if the scheduler does not
// read events. Any goroutine may call it.
func (s *Sources) RefusedAt(pod *v1.Pod) time.Time {
	return karpenter.RefusedAt(pod.UID, s.simulations.on(pod.Namespace, pod.UID))
}

// NoScaleUp returns the cluster autoscaler's last event NotTriggerScaleUp on the pod; the zero value if there is none,
// or if the scheduler does not read events. Any goroutine may call it.
func (s *Sources) NoScaleUp(pod *v1.Pod) nodegroups.NoScaleUp {
	return clusterautoscaler.LastNoScaleUp(s.events.on(pod.Namespace, pod.UID))
}

// watchSimulations starts to watch Karpenter's events on pods. The right to list and watch events is optional.
func (s *Sources) watchSimulations(ctx context.Context, config *Config) {
	s.simulations = watchEvents(ctx, config, metav1.NamespaceAll, fields.Set{"involvedObject.kind": "Pod", "source": karpenter.Component},
		"The scheduler may not list and watch events. A pod that Karpenter cannot place waits for 5 minutes before it may burst",
		func(e *v1.Event) (fact karpenter.Simulation, at time.Time, urgent bool) {
			fact = karpenter.SimulationOf(e)
			return fact, fact.At, fact.Failed // the pod may burst sooner
		})
}

// watchAutoscaler starts to watch the cluster autoscaler's events. The right to list and watch events is optional. With
// tenants, it watches only the namespace of the autoscaler's status, because tenants may write events on pods.
func (s *Sources) watchAutoscaler(ctx context.Context, config *Config, namespace string) {
	if !config.Args.Tenants {
		namespace = metav1.NamespaceAll
	}
	s.events = watchEvents(ctx, config, namespace, fields.Set{"source": clusterautoscaler.Component},
		"The scheduler may not list and watch events. A pod for which the cluster autoscaler adds no node waits longer before it may burst",
		func(e *v1.Event) (fact clusterautoscaler.Event, at time.Time, urgent bool) {
			if fact = clusterautoscaler.EventOf(e, config.Now()); fact.NoScaleUp.Seen.IsZero() {
				return fact, e.LastTimestamp.Time, true
			}
			if config.Args.Tenants {
				return clusterautoscaler.Event{}, time.Time{}, false
			}
			return fact, e.LastTimestamp.Time, false // it counts only after the next status
		})
}

// whenRefused returns a handler for the errors of a reflector. If the scheduler may not read the objects, the handler logs
// the message, but only once. It passes other errors on to the handler others.
func whenRefused(message string, others cache.WatchErrorHandlerWithContext) cache.WatchErrorHandlerWithContext {
	var once sync.Once
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsForbidden(err) {
			others(ctx, r, err)
			return
		}
		once.Do(func() { klog.FromContext(ctx).Info(message, "err", err) })
	}
}
