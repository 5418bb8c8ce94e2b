package breaker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/backoff"
)

const (
	// maxClosings bounds the number of Closings. The oldest are dropped first.
	maxClosings = 100
	// ranPeriod is the minimum time for which the breaker remembers the sizes of the largest pods that ran.
	ranPeriod = 24 * time.Hour
)

// Scope selects pods of a burst pool: those of a namespace, or those of at least a size. The other fields are zero.
type Scope struct {
	Namespace string `json:"namespace,omitempty"`
	// MilliCPU and Memory are what the provider bills for a pod, in thousandths of a CPU and in bytes.
	MilliCPU int64 `json:"milliCPU,omitempty"`
	Memory   int64 `json:"memory,omitempty"`
}

// ScopeOf returns the smallest scope that selects the pod. onACI is whether Azure Container Instances bills for the
// pod. Unlike aci.UseOf, ScopeOf has the size of a pod that has ended, too.
func ScopeOf(pod *corev1.Pod, onACI bool) Scope {
	billed := aci.Billed(pod, onACI)
	return Scope{Namespace: pod.Namespace, MilliCPU: billed.MilliCPU, Memory: billed.Memory}
}

// Selects reports whether the scope selects the pod.
func (s Scope) Selects(pod Scope) bool {
	return (s.Namespace == "" || s.Namespace == pod.Namespace) && pod.MilliCPU >= s.MilliCPU && pod.Memory >= s.Memory
}

func (s Scope) max(o Scope) Scope {
	return Scope{MilliCPU: max(s.MilliCPU, o.MilliCPU), Memory: max(s.Memory, o.Memory)}
}

// Closing keeps a pool closed for some pods. No tenant can close the pool for others by pods that the provider
// does not run: failures in one namespace concern only this namespace, and a lack of capacity for a pod that is larger
// than all that ran concerns only pods of this size.
type Closing struct {
	Scope
	// Code and Message describe the failure.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Until is when the closing becomes half-open: one of its pods then tests the provider.
	Until time.Time `json:"until"`
	// Tests are the pods that test the provider for a half-open closing.
	Tests Tests `json:"tests,omitempty"`
	// Times is how many times in a row the pool was closed for the scope, at most 30. Newest is the latest binding time
	// that was seen before the last time.
	Times  int       `json:"times,omitempty"`
	Newest time.Time `json:"newest,omitzero"`
}

// closeFor closes the pool for the scope because of the failure at the time at.
func (b *Breaker) closeFor(scope Scope, why *Failure, at time.Time) {
	times := b.closings[scope].Times
	b.closings[scope] = Closing{
		Scope: scope, Code: why.Code, Message: why.Message, Newest: b.newest, Times: min(times+1, 30),
		Until: at.Add(backoff.Pause(b.rules.FirstBackoff, times, b.rules.MaxBackoff)),
	}
	trim(b.closings, maxClosings, func(s Scope, c Closing) (time.Time, string) { return c.Until, s.Namespace })
}

// closeNamespaces closes the pool for each namespace that has at least this number of failures that match, or one such
// failure after the pool was closed for the namespace.
func (b *Breaker) closeNamespaces(least int, match func(Failure) bool, now time.Time) {
	counts := map[string]int{}
	for _, uid := range slices.Sorted(maps.Keys(b.failures)) {
		f := b.failures[uid]
		if c := b.closings[Scope{Namespace: f.Namespace}]; match(f) && f.Bound.After(c.Newest) {
			if counts[f.Namespace]++; counts[f.Namespace] >= least || c.Times > 0 {
				b.closeFor(Scope{Namespace: f.Namespace}, &f, now)
			}
		}
	}
}

// isLargest reports whether the pod is larger than each pod that ran there lately. It returns false if none ran.
func (b *Breaker) isLargest(p *Pod) bool {
	ran := b.ran[0].max(b.ran[1])
	return ran.MilliCPU > 0 && (p.Billed.MilliCPU > ran.MilliCPU || p.Billed.Memory > ran.Memory)
}

// openFor ends the closings that a pod that has started disproves.
func (b *Breaker) openFor(p *Pod) {
	b.ran[0] = b.ran[0].max(p.scope())
	maps.DeleteFunc(b.closings, func(s Scope, c Closing) bool { return s.Selects(p.scope()) && p.Bound.After(c.Newest) })
}

// forgetClosings drops closings that no pod has tested for long, and sizes of pods that ran long ago.
func (b *Breaker) forgetClosings(now time.Time) {
	maps.DeleteFunc(b.closings, func(_ Scope, c Closing) bool { return now.Sub(c.Until) >= b.rules.Evidence })
	if now.Sub(b.ranSince) < ranPeriod {
		return
	}
	b.ran, b.ranSince = [2]Scope{{}, b.ran[0]}, now
	for _, k := range b.pods {
		if k.Started {
			b.ran[0] = b.ran[0].max(k.scope())
		}
	}
}

// listed returns the closings in order.
func (b *Breaker) listed() []Closing {
	return slices.SortedFunc(maps.Values(b.closings), func(x, y Closing) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.MilliCPU, y.MilliCPU), cmp.Compare(x.Memory, y.Memory))
	})
}

func (p *Pod) scope() Scope {
	return Scope{Namespace: p.Namespace, MilliCPU: p.Billed.MilliCPU, Memory: p.Billed.Memory}
}
