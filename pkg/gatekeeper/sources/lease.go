package sources

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// lease watches the Lease of Karpenter.
type lease struct {
	config   *Config
	informer cache.SharedIndexInformer
	failed   atomic.Bool               // the Lease could not be read
	overdue  *time.Timer               // calls Changed when the Lease is too old
	renewed  atomic.Pointer[time.Time] // when the Lease was last seen to be renewed; nil if it never was
}

// watchLease starts to watch the Lease. The right to read the Lease is optional.
func watchLease(ctx context.Context, config *Config) *lease {
	namespace, name, _ := strings.Cut(config.Args.Capacity.KarpenterLease, "/")
	l := &lease{
		config: config, overdue: time.AfterFunc(time.Hour, config.Changed),
		informer: coordinationinformers.NewFilteredLeaseInformer(config.Client, namespace, 0, cache.Indexers{}, only(name)),
	}
	l.overdue.Stop()
	handle := whenRefused("The scheduler may not read Karpenter's Lease, so it does not notice that Karpenter is dead", cache.DefaultWatchErrorHandler)
	start(ctx, l.informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { l.see(time.Time{}, obj) },
		UpdateFunc: func(before, obj any) { l.see(renewTime(before), obj) },
		DeleteFunc: func(any) { l.renewed.Store(nil); l.config.Changed() },
	}, func(ctx context.Context, r *cache.Reflector, err error) {
		l.failed.Store(true)
		handle(ctx, r, err)
	})
	return l
}

func renewTime(obj any) time.Time {
	return ptr.Deref(obj.(*coordinationv1.Lease).Spec.RenewTime, metav1.MicroTime{}).Time
}

// see processes the Lease. before is the time of the renewal before; zero if the scheduler sees the Lease for the first
// time. The Lease then counts only if it is not too old, because a Karpenter that was removed leaves its Lease behind.
// Karpenter renews the Lease every 2 s, so a renewal calls Changed only if the Lease was too old.
func (l *lease) see(before time.Time, obj any) {
	at, now, stale := renewTime(obj), l.config.Now(), l.config.Args.Capacity.StaleAfter.Duration
	if at.Equal(before) || before.IsZero() && now.Sub(at) >= stale {
		return
	}
	last := l.last()
	l.renewed.Store(&now)
	l.overdue.Reset(stale)
	if now.Sub(last) >= stale {
		l.config.Changed()
	}
}

// settled reports whether the Lease was read, is known not to exist, or could not be read.
func (l *lease) settled() bool { return l.informer.HasSynced() || l.failed.Load() }

// exists reports whether the Lease exists, as far as the scheduler can read it.
func (l *lease) exists() bool { return len(l.informer.GetStore().ListKeys()) > 0 }

// last returns when the Lease was last seen to be renewed; zero if it never was, or if there is no Lease.
func (l *lease) last() time.Time {
	return ptr.Deref(l.renewed.Load(), time.Time{})
}
