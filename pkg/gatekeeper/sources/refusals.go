package sources

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// byObject is the name of the index of events by objectKey.
const byObject = "object"

// event is what the scheduler keeps of an autoscaler's event.
type event struct {
	metav1.ObjectMeta
	object types.UID // of the object that the event is about
	fact   any       // a karpenter.Simulation or a clusterautoscaler.Event; nil if the scheduler does not need the event
	urgent bool      // whether Changed is called
}

// objectKey includes the namespace of the event: who may write events in one namespace must not decide for pods of
// another.
func objectKey(namespace string, object types.UID) string { return namespace + "/" + string(object) }

// eventsOn returns the facts of the events on the object. informer is nil if the scheduler does not read events.
func eventsOn[T any](informer cache.SharedIndexInformer, namespace string, object types.UID) (facts []T) {
	if informer == nil {
		return nil
	}
	all, _ := informer.GetIndexer().ByIndex(byObject, objectKey(namespace, object)) // does not fail
	for _, obj := range all {
		if fact, ok := obj.(*event).fact.(T); ok {
			facts = append(facts, fact)
		}
	}
	return facts
}

// RefusedAt returns when Karpenter wrote that it cannot place the pod; zero if it did not, or if the scheduler does not
// read events. Any goroutine may call it.
func (s *Sources) RefusedAt(pod *v1.Pod) time.Time {
	return karpenter.RefusedAt(pod.UID, eventsOn[karpenter.Simulation](s.simulations, pod.Namespace, pod.UID))
}

// NoScaleUp returns the cluster autoscaler's last event NotTriggerScaleUp on the pod; the zero value if there is none,
// or if the scheduler does not read events. Any goroutine may call it.
func (s *Sources) NoScaleUp(pod *v1.Pod) nodegroups.NoScaleUp {
	return clusterautoscaler.LastNoScaleUp(eventsOn[clusterautoscaler.Event](s.events, pod.Namespace, pod.UID))
}

// watchSimulations starts to watch Karpenter's events on pods. The right to list and watch events is optional.
func (s *Sources) watchSimulations(ctx context.Context, config *Config) (err error) {
	s.simulations, err = watchEvents(ctx, config, metav1.NamespaceAll, fields.Set{"involvedObject.kind": "Pod", "source": karpenter.Component},
		"The scheduler may not list and watch events. A pod that Karpenter cannot place waits for 5 minutes before it may burst",
		func(e *event, of *v1.Event) {
			if fact := karpenter.SimulationOf(of); fact.Pod != "" {
				e.fact, e.urgent = fact, fact.Failed // the pod may burst sooner
			}
		})
	return err
}

// watchAutoscaler starts to watch the cluster autoscaler's events. The right to list and watch events is optional. With
// tenants, it watches only the namespace of the autoscaler's status, because tenants may write events on pods.
func (s *Sources) watchAutoscaler(ctx context.Context, config *Config, namespace string) (err error) {
	if !config.Args.Tenants {
		namespace = metav1.NamespaceAll
	}
	s.events, err = watchEvents(ctx, config, namespace, fields.Set{"source": clusterautoscaler.Component},
		"The scheduler may not list and watch events. A pod for which the cluster autoscaler adds no node waits longer before it may burst",
		func(e *event, of *v1.Event) {
			switch fact := clusterautoscaler.EventOf(of, config.Now()); {
			case fact == clusterautoscaler.Event{}:
			case fact.NoScaleUp.Seen.IsZero():
				e.fact, e.urgent = fact, true
			case !config.Args.Tenants:
				e.fact = fact // it counts only after the next status
			}
		})
	return err
}

// watchEvents starts to watch the events in the namespace that match the selector. keep sets an event's fact. If the
// scheduler may not read events, the message is logged.
func watchEvents(ctx context.Context, config *Config, namespace string, selector fields.Set, message string, keep func(e *event, of *v1.Event)) (cache.SharedIndexInformer, error) {
	informer := coreinformers.NewFilteredEventInformer(config.Client, namespace, 0,
		cache.Indexers{byObject: func(obj any) ([]string, error) {
			if e, ok := obj.(*event); ok && e.fact != nil {
				return []string{objectKey(e.Namespace, e.object)}, nil
			}
			return nil, nil
		}},
		func(o *metav1.ListOptions) { o.FieldSelector = selector.String() })
	err := informer.SetTransform(func(obj any) (any, error) {
		of, ok := obj.(*v1.Event)
		if !ok {
			return obj, nil
		}
		e := &event{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, ResourceVersion: of.ResourceVersion}, object: of.InvolvedObject.UID}
		if known, found, _ := informer.GetStore().GetByKey(cache.MetaObjectToName(e).String()); found && known.(*event).ResourceVersion == e.ResourceVersion {
			return known, nil // the event is listed again, and was received before
		}
		keep(e, of)
		return e, nil
	})
	if err == nil {
		err = logRefusal(informer, message, func() {})
	}
	changed := func(obj any) {
		if e, ok := obj.(*event); ok && e.urgent {
			config.Changed()
		}
	}
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }})
	}
	if err != nil {
		return nil, fmt.Errorf("watching events of %s: %w", selector["source"], err)
	}
	go informer.RunWithContext(ctx)
	return informer, nil
}

// logRefusal makes the informer log the message once if it may not read its objects. The informer calls failed each time
// that it fails to read them.
func logRefusal(informer cache.SharedIndexInformer, message string, failed func()) error {
	var once sync.Once
	return informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		failed()
		if !apierrors.IsForbidden(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		once.Do(func() { klog.FromContext(ctx).Info(message, "err", err) })
	})
}
