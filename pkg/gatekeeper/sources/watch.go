package sources

import (
	"context"
	"errors"
	"fmt"
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
func watch(ctx context.Context, informer cache.SharedIndexInformer, key, source string, changed func()) (*watched, error) {
	w := &watched{informer: informer, key: key}
	Errors.WithLabelValues(source).Add(0) // if a counter's first value were 1, Prometheus would show no increase
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	}); err != nil {
		return nil, fmt.Errorf("watching %s: %w", key, err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		w.failure.Store(&err)
		if !passes(err) {
			Errors.WithLabelValues(source).Inc()
		}
		changed()
	}); err != nil {
		return nil, fmt.Errorf("watching %s: %w", key, err)
	}
	go informer.RunWithContext(ctx)
	return w, nil
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
