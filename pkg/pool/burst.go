package pool

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

const (
	// BurstAnnotation is the pod annotation that sets whether the pod may use burst pools.
	BurstAnnotation = "poolpriority.dev/burst"
	// BurstNever is the value of BurstAnnotation that closes all gates to the pod. An unknown value has the same
	// effect.
	BurstNever = "Never"
	// BurstAlways is the value of BurstAnnotation that skips the check whether a virtual kubelet can run the pod.
	BurstAlways = "Always"
)

// Limits is the budget of a burst pool, or of a namespace in a burst pool: a number of pods, thousandths of a CPU, and
// bytes of memory. 0 means no limit.
type Limits struct {
	Pods             int
	MilliCPU, Memory int64
}

// prepareBurst precomputes the fields of a burst pool that every scheduling cycle reads.
func (p *Pool) prepareBurst() error {
	if p.Burst.NamespaceSelector != nil {
		var err error
		if p.namespaces, err = metav1.LabelSelectorAsSelector(p.Burst.NamespaceSelector); err != nil {
			return fmt.Errorf("parsing the namespace selector of pool %q: %w", p.Name, err)
		}
	}
	p.limits = limitsOf(p.Burst.Budget())
	p.perNamespace = limitsOf(ptr.Deref(p.Burst.PerNamespace, configv1.BurstLimits{}))
	return nil
}

func limitsOf(budget configv1.BurstLimits) Limits {
	limits := Limits{Pods: int(budget.Pods)}
	if budget.CPU != nil {
		limits.MilliCPU = budget.CPU.MilliValue()
	}
	if budget.Memory != nil {
		limits.Memory = budget.Memory.Value()
	}
	return limits
}

// Limits returns the burst pool's budget.
func (p *Pool) Limits() Limits { return p.limits }

// PerNamespace returns the budget of each namespace in the burst pool.
func (p *Pool) PerNamespace() Limits { return p.perNamespace }

// LimitsNamespaces reports whether any burst pool has a budget for each namespace.
func (l List) LimitsNamespaces() bool {
	return slices.ContainsFunc(l.pools, func(p Pool) bool { return p.perNamespace != (Limits{}) })
}

// OnACI reports whether the burst pool's pods run on Azure Container Instances.
func (p *Pool) OnACI() bool { return p.Burst.Platform != configv1.PlatformOther }

// StartWithin returns how long a pod in the burst pool may take to start; 0 means no limit.
func (p *Pool) StartWithin() time.Duration {
	if p.Burst.StartWithin == nil {
		return 0
	}
	return p.Burst.StartWithin.Duration
}

// SelectsNamespaces reports whether any burst pool has a namespaceSelector.
func (l List) SelectsNamespaces() bool { return l.selective }

// NotSelecting reports, by the pool's index, whether a burst pool's namespaceSelector excludes the namespace. An
// unknown namespace (nil) is excluded. NotSelecting returns nil if no pool has a namespaceSelector.
func (l List) NotSelecting(namespace *corev1.Namespace) []bool {
	if !l.SelectsNamespaces() {
		return nil
	}
	not := make([]bool, len(l.pools))
	for i := range l.pools {
		if selector := l.pools[i].namespaces; selector != nil {
			not[i] = namespace == nil || !selector.Matches(labels.Set(namespace.Labels))
		}
	}
	return not
}
