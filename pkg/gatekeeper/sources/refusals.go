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

	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// byPod is the name of the index of Karpenter's events by the UID of their pod.
const byPod = "pod"

// simulation is an event of Karpenter.
type simulation struct {
	metav1.ObjectMeta
	karpenter.Simulation
}

// RefusedAt returns when Karpenter wrote that it cannot place the pod; zero if it did not, or if the scheduler does not
// read events. Any goroutine may call it.
func (s *Sources) RefusedAt(pod types.UID) time.Time {
	if s.simulations == nil {
		return time.Time{}
	}
	var results []karpenter.Simulation
	all, _ := s.simulations.GetIndexer().ByIndex(byPod, string(pod)) // does not fail
	for _, obj := range all {
		if event, ok := obj.(*simulation); ok {
			results = append(results, event.Simulation)
		}
	}
	return karpenter.RefusedAt(pod, results)
}

// watchSimulations starts to watch Karpenter's events on pods. The right to list and watch events is optional.
func (s *Sources) watchSimulations(ctx context.Context, config *Config) error {
	informer := coreinformers.NewFilteredEventInformer(config.Client, metav1.NamespaceAll, 0,
		cache.Indexers{byPod: func(obj any) ([]string, error) {
			if event, ok := obj.(*simulation); ok && event.Pod != "" {
				return []string{string(event.Pod)}, nil
			}
			return nil, nil
		}},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.Set{"involvedObject.kind": "Pod", "source": karpenter.Component}.String()
		})
	s.simulations = informer
	err := informer.SetTransform(func(obj any) (any, error) {
		e, ok := obj.(*v1.Event)
		if !ok {
			return obj, nil
		}
		return &simulation{metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, ResourceVersion: e.ResourceVersion}, karpenter.SimulationOf(e)}, nil
	})
	if err == nil {
		err = logRefusal(informer, "The scheduler may not list and watch events. A pod that Karpenter cannot place waits for 5 minutes before it may burst", func() {})
	}
	changed := func(obj any) {
		if event, ok := obj.(*simulation); ok && event.Failed { // the pod may burst sooner
			config.Changed()
		}
	}
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }})
	}
	if err != nil {
		return fmt.Errorf("watching Karpenter's events: %w", err)
	}
	go informer.RunWithContext(ctx)
	return nil
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
