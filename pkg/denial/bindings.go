package denial

import (
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// period is how long a pool is left out after a denied binding.
	period = 5 * time.Minute
	// maxBindings bounds the denied bindings that are remembered, and maxMessage the bytes of a Denied.Message.
	maxBindings, maxMessage = 5000, 500
)

// OfBinding reports whether an admission rule denied the binding of a pod, but not one of the pool-priority scheduler's
// own policies, which name what an operator closed on purpose.
func OfBinding(err error) bool {
	return Is(err) && !WithoutRight(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !strings.Contains(err.Error(), "the pool-priority scheduler ")
}

// Denied says that an admission rule denies bindings to the nodes of a pool.
type Denied struct {
	// Message is the last denial. Until is when all pods use the pool again.
	Message string    `json:"message"`
	Until   time.Time `json:"until"`
	// All is set if all pods leave out the pool, and not only those whose binding was denied.
	All bool `json:"all,omitempty"`

	namespaces map[string]time.Time // those with denials since a binding to the pool last succeeded, and until when they count
}

// Bindings remembers denied bindings. For five minutes, a pod leaves out the pool to which its binding was denied: it is
// then unschedulable, so that it uses other pools and autoscalers help it. After denials in two namespaces, with no
// successful binding to the pool between them, all pods leave out the pool. Bindings is safe for concurrent use.
type Bindings struct {
	mu    sync.Mutex
	pods  map[binding]time.Time // until when the pod leaves out the pool
	pools map[int]Denied        // by the pool's index
}

type binding struct {
	pod  types.UID
	pool int
}

// NewBindings returns Bindings without entries.
func NewBindings() *Bindings {
	return &Bindings{pods: map[binding]time.Time{}, pools: map[int]Denied{}}
}

// Deny records that the pod's binding to a node of the pool with index i was denied at the time now.
func (b *Bindings) Deny(i int, pod *corev1.Pod, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	over := func(until time.Time) bool { return !now.Before(until) }
	maps.DeleteFunc(b.pods, func(_ binding, until time.Time) bool { return over(until) })
	message, until := err.Error(), now.Add(period)
	if len(b.pods) < maxBindings {
		b.pods[binding{pod.UID, i}] = until
	}
	namespaces := map[string]time.Time{}
	maps.Copy(namespaces, b.pools[i].namespaces)
	namespaces[pod.Namespace] = until
	maps.DeleteFunc(namespaces, func(_ string, until time.Time) bool { return over(until) })
	b.pools[i] = Denied{Message: strings.ToValidUTF8(message[:min(len(message), maxMessage)], ""), Until: until, All: len(namespaces) > 1, namespaces: namespaces}
}

// Accept records that a binding to a node of the pool with index i succeeded.
func (b *Bindings) Accept(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d, ok := b.pools[i]; ok {
		b.pools[i] = Denied{Message: d.Message, Until: d.Until}
	}
}

// LeftOut reports which of the pools the pod leaves out at the time now, by the pool's index; nil if it leaves out none.
// With own, only pools to which the pod's own binding was denied count.
func (b *Bindings) LeftOut(pod types.UID, pools int, own bool, now time.Time) (out []bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, d := range b.pools {
		if now.Before(d.Until) && (d.All && !own || now.Before(b.pods[binding{pod, i}])) {
			if out == nil {
				out = make([]bool, pools)
			}
			out[i] = true
		}
	}
	return out
}

// Of returns what is known of the pool with index i at the time now; nil if nothing counts.
func (b *Bindings) Of(i int, now time.Time) *Denied {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d, ok := b.pools[i]; ok && now.Before(d.Until) {
		return &d
	}
	return nil
}
