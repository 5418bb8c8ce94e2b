package sources

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// watched is a watch of one object.
type watched struct {
	informer cache.SharedIndexInformer
	key      string
	failure  atomic.Pointer[error]
}

// watch starts to watch the object with the key (namespace/name), and calls changed when the object changes or cannot
// be read. The informer must list only this object. watch counts each failure to read the object for the source, unless
// passes returns true for the error.
func watch(ctx context.Context, informer cache.SharedIndexInformer, key, source string, changed func()) *watched {
	w := &watched{informer: informer, key: key}
	Errors.WithLabelValues(source).Add(0) // if a counter's first value were 1, Prometheus would show no increase
	start(ctx, informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	}, func(_ context.Context, _ *cache.Reflector, err error) {
		w.failure.Store(&err)
		if !passes(err) {
			Errors.WithLabelValues(source).Inc()
		}
		changed()
	})
	return w
}

// start starts the informer with the handler of its objects and the handler of its errors. An informer rejects handlers
// only after it was started.
func start(ctx context.Context, informer cache.SharedIndexInformer, objects cache.ResourceEventHandler, failures cache.WatchErrorHandlerWithContext) {
	_, _ = informer.AddEventHandler(objects)
	_ = informer.SetWatchErrorHandlerWithContext(failures)
	go informer.RunWithContext(ctx)
}

// passes reports whether the error is a normal end of a watch. The informer then starts a new watch.
func passes(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// settled reports whether the object was read, is known not to exist, or could not be read.
func (w *watched) settled() bool { return w.informer.HasSynced() || w.failure.Load() != nil }

// get returns the object, or nil if it does not exist. It returns an error if no attempt to read the object has
// succeeded.
func (w *watched) get() (runtime.Object, error) {
	if obj, exists, err := w.informer.GetStore().GetByKey(w.key); err == nil && exists {
		return obj.(runtime.Object), nil
	}
	if failure := w.failure.Load(); failure != nil && !w.informer.HasSynced() {
		return nil, *failure
	}
	return nil, nil
}
