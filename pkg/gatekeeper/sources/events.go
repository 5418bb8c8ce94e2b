package sources

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// event is what the scheduler keeps of an autoscaler's event.
type event[F comparable] struct {
	metav1.ObjectMeta           // only the namespace, the name, and the resource version
	object            types.UID // of the object that the event is about
	fact              F         // the zero value if the scheduler does not need the event
	at                time.Time // when the autoscaler wrote the event
	urgent            bool      // whether Changed is called
}

// objectKey identifies the object of events. It includes the namespace of the events: who may write events in one
// namespace must not decide for pods of another.
type objectKey struct {
	namespace string
	object    types.UID
}

// maxAge is the age from which events do not count when they are listed. Autoscalers repeat the events that still hold:
// the cluster autoscaler and Karpenter on a pod after 5 minutes at most, a degradation within maxDegradation.
const maxAge = 15 * time.Minute

// lastEvents has the last event on each object. An informer would keep all events for as long as the API server does, which
// is an hour by default. In that time, the autoscaler may write many events on a pod that waits.
type lastEvents[F comparable] struct {
	keep     func(*v1.Event) (fact F, at time.Time, urgent bool)
	changed  func()
	now      func() time.Time
	unneeded *event[F] // stands for each listed event that does not count
	synced   atomic.Bool

	mu   sync.Mutex
	last map[objectKey]*event[F]
}

var _ cache.TransformingStore = &lastEvents[int]{}

// watchEvents starts to watch the events in the namespace that match the selector. keep returns an event's fact. If the
// scheduler may not read events, the message is logged.
func watchEvents[F comparable](ctx context.Context, config *Config, namespace string, selector fields.Set, message string, keep func(*v1.Event) (fact F, at time.Time, urgent bool)) *lastEvents[F] {
	s := &lastEvents[F]{keep: keep, changed: config.Changed, now: config.Now, unneeded: &event[F]{}, last: map[objectKey]*event[F]{}}
	client := config.Client.CoreV1().Events(namespace)
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			o.FieldSelector = selector.String()
			return client.Watch(ctx, o)
		},
	}, config.Client), &v1.Event{}, s, cache.ReflectorOptions{Name: "events of " + selector["source"]})
	failed := whenRefused(message, cache.DefaultWatchErrorHandler)
	backoff := wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 6, Factor: 2, Jitter: 1}
	go func() {
		_ = backoff.DelayWithReset(clock.RealClock{}, 2*time.Minute).Until(ctx, true, true, func(ctx context.Context) (done bool, err error) {
			if err := reflector.ListAndWatchWithContext(ctx); err != nil {
				failed(ctx, reflector, err)
			}
			return false, nil
		}) // the error says that the context ended
	}()
	return s
}

// on returns the fact of the last event on the object; none if there is no such event, or if s is nil, that is, if the
// scheduler does not read events. Any goroutine may call it.
func (s *lastEvents[F]) on(namespace string, object types.UID) []F {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.last[objectKey{namespace, object}]; e != nil {
		return []F{e.fact}
	}
	return nil
}

// HasSynced reports whether the events were listed. It returns false if s is nil.
func (s *lastEvents[F]) HasSynced() bool { return s != nil && s.synced.Load() }

// Transformer implements cache.TransformingStore.
func (s *lastEvents[F]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.listed(obj), nil }
}

// listed returns what is kept of obj, an event that was listed.
func (s *lastEvents[F]) listed(obj any) *event[F] {
	if e := s.event(obj); e.fact != s.unneeded.fact && s.now().Sub(e.at) < maxAge {
		return e
	}
	return s.unneeded
}

// event returns what is kept of obj, which is a *v1.Event or has been transformed before.
func (s *lastEvents[F]) event(obj any) *event[F] {
	if e, ok := obj.(*event[F]); ok {
		return e
	}
	of := obj.(*v1.Event) // the reflector has events only
	e := &event[F]{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, ResourceVersion: of.ResourceVersion}, object: of.InvolvedObject.UID}
	e.fact, e.at, e.urgent = s.keep(of)
	return e
}

// Add implements cache.ReflectorStore.
func (s *lastEvents[F]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *lastEvents[F]) Update(obj any) error {
	e := s.event(obj)
	if e.fact == s.unneeded.fact {
		return nil
	}
	key := objectKey{e.Namespace, e.object}
	s.mu.Lock()
	if before := s.last[key]; before == nil || before.Name == e.Name || !e.at.Before(before.at) {
		s.last[key] = e
	}
	s.mu.Unlock()
	if e.urgent {
		s.changed()
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *lastEvents[F]) Delete(obj any) error {
	e := s.event(obj)
	key := objectKey{e.Namespace, e.object}
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.last[key]; last != nil && last.Name == e.Name {
		delete(s.last, key)
	}
	return nil
}

// Replace implements cache.ReflectorStore. An event that was received before keeps its fact.
func (s *lastEvents[F]) Replace(list []any, _ string) error {
	last, urgent := map[objectKey]*event[F]{}, false
	s.mu.Lock()
	for _, obj := range list {
		e := s.event(obj)
		key := objectKey{e.Namespace, e.object}
		if before := s.last[key]; before != nil && before.Name == e.Name && before.ResourceVersion == e.ResourceVersion {
			e = before
		} else {
			e = s.listed(e)
		}
		if other := last[key]; e != s.unneeded && (other == nil || e.at.After(other.at)) {
			last[key] = e
		}
	}
	for key, e := range last {
		urgent = urgent || e.urgent && e != s.last[key]
	}
	s.last = last
	s.mu.Unlock()
	s.synced.Store(true)
	if urgent {
		s.changed()
	}
	return nil
}

// Resync implements cache.ReflectorStore. There are no handlers to call again.
func (s *lastEvents[F]) Resync() error { return nil }
