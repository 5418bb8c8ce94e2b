package sources

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// byPod is the name of the index of Karpenter's events by the UID of their pod.
const byPod = "pod"

// answer is an event of Karpenter that shows that Karpenter looked at a pod.
type answer struct {
	metav1.ObjectMeta
	pod types.UID
	at  time.Time
}

// Answered returns when Karpenter last wrote an event that shows that it looked at the pod; zero if it wrote none, or if
// the scheduler does not read events.
func (s *Sources) Answered(pod types.UID) (at time.Time) {
	if s.answers == nil {
		return at
	}
	all, _ := s.answers.GetIndexer().ByIndex(byPod, string(pod)) // does not fail
	for _, obj := range all {
		if a, ok := obj.(*answer); ok && a.at.After(at) {
			at = a.at
		}
	}
	return at
}

// watchAnswers starts to watch Karpenter's events on pods. The right to list and watch events is optional.
func (s *Sources) watchAnswers(ctx context.Context, config *Config) error {
	informer := coreinformers.NewFilteredEventInformer(config.Client, metav1.NamespaceAll, 0,
		cache.Indexers{byPod: func(obj any) ([]string, error) {
			if a, ok := obj.(*answer); ok && a.pod != "" {
				return []string{string(a.pod)}, nil
			}
			return nil, nil
		}},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.Set{"involvedObject.kind": "Pod", "source": karpenter.Component}.String()
		})
	s.answers = informer
	err := informer.SetTransform(func(obj any) (any, error) {
		e, ok := obj.(*v1.Event)
		if !ok {
			return obj, nil
		}
		a := &answer{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, ResourceVersion: e.ResourceVersion}}
		a.pod, a.at = karpenter.Answered(e)
		return a, nil
	})
	if err == nil {
		err = refusedOnce(ctx, informer, "The scheduler may not list and watch events. A pod that Karpenter cannot place waits for 5 minutes before it may burst")
	}
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { config.Changed() }, UpdateFunc: func(any, any) { config.Changed() }})
	}
	if err != nil {
		return fmt.Errorf("watching Karpenter's events: %w", err)
	}
	go informer.RunWithContext(ctx)
	return nil
}

// refusedOnce makes the informer log once that it may not read its objects. Other failures are temporary.
func refusedOnce(ctx context.Context, informer cache.SharedIndexInformer, message string) error {
	var once sync.Once
	return informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			once.Do(func() { klog.FromContext(ctx).Info(message, "err", err) })
		}
	})
}

// lease watches the Lease of Karpenter.
type lease struct {
	config  *Config
	renewed atomic.Pointer[time.Time] // when the Lease was last seen to be renewed; nil if there is no Lease
}

// watchLease starts to watch the Lease. The right to read the Lease is optional.
func watchLease(ctx context.Context, config *Config) (*lease, error) {
	l := &lease{config: config}
	namespace, name, err := cache.SplitMetaNamespaceKey(config.Args.Capacity.KarpenterLease)
	if err != nil {
		return nil, fmt.Errorf("capacity.karpenterLease: %w", err)
	}
	informer := coordinationinformers.NewFilteredLeaseInformer(config.Client, namespace, 0, cache.Indexers{}, only(name))
	err = refusedOnce(ctx, informer, "The scheduler may not read Karpenter's Lease, so it does not notice that Karpenter is dead")
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { l.see(nil, obj) }, UpdateFunc: l.see, DeleteFunc: func(any) { l.renewed.Store(nil); config.Changed() },
		})
	}
	if err != nil {
		return nil, fmt.Errorf("watching Lease %s: %w", config.Args.Capacity.KarpenterLease, err)
	}
	go informer.RunWithContext(ctx)
	return l, nil
}

// see records that the Lease was renewed. An old Lease that the scheduler sees for the first time counts with its own
// time, if this is in the past. A renewal calls Changed only if the Lease was too old, because there are many.
func (l *lease) see(before, obj any) {
	is, ok := obj.(*coordinationv1.Lease)
	if !ok || is.Spec.RenewTime == nil {
		return
	}
	now, last := l.config.Now(), l.renewed.Load()
	if was, ok := before.(*coordinationv1.Lease); ok && ptr.Equal(was.Spec.RenewTime, is.Spec.RenewTime) {
		return
	}
	if at := is.Spec.RenewTime.Time; before == nil && at.Before(now) {
		now = at
	}
	l.renewed.Store(&now)
	if last == nil || now.Sub(*last) >= l.config.Args.Capacity.StaleAfter.Duration {
		l.config.Changed()
	}
}

// last returns when the Lease was last seen to be renewed; zero if there is no Lease.
func (l *lease) last() time.Time {
	if at := l.renewed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}
