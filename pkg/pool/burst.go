package pool

import (
	"fmt"
	"math"
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
	// BurstBelowPriority is the value of BurstAnnotation with which a pod may burst although its priority is below the
	// burst pool's BelowPriority.
	BurstBelowPriority = "BelowPriority"

	// These labels of a namespace have the value LabelAllowed. With BurstLabel, the pods of the namespace may burst if
	// tenants is true. With BurstNodesLabel, they may also ask for burst nodes by themselves.
	BurstLabel      = BurstAnnotation
	BurstNodesLabel = "poolpriority.dev/burst-nodes"
	LabelAllowed    = "Allowed"
)

// maxValue bounds how many bytes of the value of BurstAnnotation or OrderAnnotation are used.
const maxValue = 64

// BurstValue returns the value of the pod's BurstAnnotation, cut at 64 bytes.
func BurstValue(pod *corev1.Pod) string {
	value := pod.Annotations[BurstAnnotation]
	return value[:min(len(value), maxValue)]
}

// Allowed reports whether the namespace has the label with the value LabelAllowed. namespace may be nil.
func Allowed(namespace *corev1.Namespace, label string) bool {
	return namespace != nil && namespace.Labels[label] == LabelAllowed
}

// Limits is the budget of a burst pool, or of a namespace in a burst pool: a number of pods, thousandths of a CPU, and
// bytes of memory. 0 means no limit.
type Limits struct {
	Pods             int
	MilliCPU, Memory int64
}

// prepareBurst precomputes the fields of a burst pool that every scheduling cycle reads.
func (p *Pool) prepareBurst(tenants bool) error {
	if p.Burst.NamespaceSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(p.Burst.NamespaceSelector)
		if err != nil {
			return fmt.Errorf("parsing the namespace selector of pool %q: %w", p.Name, err)
		}
		p.admits = func(namespace *corev1.Namespace) bool {
			return namespace != nil && selector.Matches(labels.Set(namespace.Labels))
		}
	} else if tenants {
		p.admits = func(namespace *corev1.Namespace) bool {
			return Allowed(namespace, BurstLabel) || Allowed(namespace, BurstNodesLabel)
		}
	}
	p.limits = limitsOf(ptr.Deref(p.Burst.Limits, configv1.BurstLimits{}))
	p.creates, p.shared = Rates{int(ptr.Deref(p.Burst.Creates.Per5Minutes, 0)), int(ptr.Deref(p.Burst.Creates.PerHour, 0))}, tenants
	p.perNamespace = limitsOf(ptr.Deref(p.Burst.PerNamespace, configv1.BurstLimits{}))
	return nil
}

// RateWindows are the times for which Rates are set.
var RateWindows = [...]time.Duration{5 * time.Minute, time.Hour}

// Rates are the most pods that a burst pool may get in each of the RateWindows. 0 means no limit.
type Rates [len(RateWindows)]int

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

// MayOverflow reports whether any burst pool has whileGrowing: Overflow.
func (l List) MayOverflow() bool {
	return slices.ContainsFunc(l.pools, func(p Pool) bool { return p.Burst != nil && p.Burst.WhileGrowing == configv1.Overflow })
}

// Returns reports whether Return is enabled in any pool.
func (l List) Returns() bool {
	return slices.ContainsFunc(l.pools, func(p Pool) bool { return p.Return() != nil })
}

// Autoscaled reports whether the cluster autoscaler grows any pool.
func (l List) Autoscaled() bool {
	return slices.ContainsFunc(l.pools, func(p Pool) bool { return p.ClusterAutoscaler != nil })
}

// Limits returns the burst pool's budget.
func (p *Pool) Limits() Limits { return p.limits }

// PerNamespace returns the budget of each namespace in the burst pool.
func (p *Pool) PerNamespace() Limits { return p.perNamespace }

// Creates returns the burst pool's rates, and whether a namespace may use only half of each.
func (p *Pool) Creates() (rates Rates, shared bool) { return p.creates, p.shared }

// LimitsNamespaces reports whether any burst pool has a budget or rates for each namespace.
func (l List) LimitsNamespaces() bool {
	return slices.ContainsFunc(l.pools, func(p Pool) bool { return p.perNamespace != (Limits{}) || p.shared && p.creates != (Rates{}) })
}

// OnACI reports whether the burst pool's pods run on Azure Container Instances.
func (p *Pool) OnACI() bool { return p.Burst.Platform != configv1.PlatformOther }

// Loses reports whether pods lose the protection in the burst pool. Virtual kubelets do not apply NetworkPolicies. The
// connector of AKS's virtual nodes ignores the settings that restricted Pod Security requires, and the RuntimeClass.
func (p *Pool) Loses(loss configv1.Loss) bool { return loss == configv1.LossNetworkPolicy || p.OnACI() }

// StartWithin returns how long a pod in the burst pool may take to start; 0 means no limit.
func (p *Pool) StartWithin() time.Duration {
	return ptr.Deref(p.Burst.StartWithin, metav1.Duration{}).Duration
}

// BelowPriority returns the priority below which pods are preempted before a pod bursts to the pool, and below which
// pods do not burst.
func (p *Pool) BelowPriority() int32 { return ptr.Deref(p.Burst.MakeRoom.BelowPriority, math.MinInt32) }

// SelectsNamespaces reports whether any burst pool admits only some namespaces.
func (l List) SelectsNamespaces() bool { return l.selective }

// NotSelecting reports, by the pool's index, whether a burst pool's namespaceSelector, or its default with tenants,
// excludes the namespace. An unknown namespace (nil) is excluded. NotSelecting returns nil if all pools admit all
// namespaces.
func (l List) NotSelecting(namespace *corev1.Namespace) []bool {
	if !l.SelectsNamespaces() {
		return nil
	}
	not := make([]bool, len(l.pools))
	for i := range l.pools {
		not[i] = l.pools[i].admits != nil && !l.pools[i].admits(namespace)
	}
	return not
}
