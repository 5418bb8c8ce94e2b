package gate

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/alike"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// podSecurityLabel, with the value restricted, marks namespaces that enforce the restricted Pod Security Standard.
const podSecurityLabel, restricted = "pod-security.kubernetes.io/enforce", "restricted"

// losses has a row for each protection that pods may lose in burst pools.
var losses = []struct {
	loss   configv1.Loss
	label  string // with the value pool.LabelAllowed, pods of the namespace may lose the protection
	reason nodegroups.Reason
}{
	{configv1.LossNetworkPolicy, networkPolicyLabel, reasonNetworkPolicyLost},
	{configv1.LossSandbox, sandboxLabel, reasonSandboxLost},
	{configv1.LossSecurityContext, securityContextLabel, reasonSecurityContextLost},
}

// Lost describes the protections that a pod has on VMs and may lose in burst pools. A description completes "it runs
// without …".
type Lost map[configv1.Loss]string

// Policy is what the gate reads of a NetworkPolicy.
type Policy struct {
	metav1.ObjectMeta
	// Selector selects pods of the policy's namespace.
	Selector labels.Selector
}

// NewPolicy returns what the gate reads of the policy. A policy whose podSelector is not valid selects all pods.
func NewPolicy(p *networkingv1.NetworkPolicy) *Policy {
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		selector = labels.Everything()
	}
	return &Policy{metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}, selector}
}

// LostBy returns the protections of the pod. policies are those of the pod's namespace. The namespace may be nil.
func LostBy(pod *corev1.Pod, namespace *corev1.Namespace, policies []*Policy) Lost {
	lost, first := Lost{}, ""
	for _, p := range policies {
		if p.Selector.Matches(labels.Set(pod.Labels)) && (first == "" || p.Name < first) {
			first = p.Name
			lost[configv1.LossNetworkPolicy] = "the NetworkPolicy " + first
		}
	}
	if class := ptr.Deref(pod.Spec.RuntimeClassName, ""); class != "" {
		lost[configv1.LossSandbox] = "the sandbox of its RuntimeClass " + class
	}
	if namespace != nil && namespace.Labels[podSecurityLabel] == restricted {
		lost[configv1.LossSecurityContext] = "the settings that restricted Pod Security requires"
	}
	return lost
}

// In returns the descriptions of those protections that pods lose in the burst pool.
func (l Lost) In(p *pool.Pool) []string {
	var in []string
	for i := range losses {
		if what, ok := l[losses[i].loss]; ok && p.Loses(losses[i].loss) {
			in = append(in, what)
		}
	}
	return in
}

// Tenant is what the gate reads of a pod's namespace if `tenants` is true.
type Tenant struct {
	// Lost has the pod's protections, except those that its namespace allows to lose.
	Lost Lost
	// MayAsk is set if the pod may ask for burst nodes by itself.
	MayAsk bool
}

// TenantOf returns the Tenant of a pod of the namespace. lost has all of the pod's protections.
func TenantOf(namespace *corev1.Namespace, lost Lost) *Tenant {
	t := &Tenant{Lost: Lost{}, MayAsk: pool.Allowed(namespace, pool.BurstNodesLabel)}
	for i := range losses {
		if what, ok := lost[losses[i].loss]; ok && !pool.Allowed(namespace, losses[i].label) {
			t.Lost[losses[i].loss] = what
		}
	}
	return t
}

// losses closes the gate if the pod would lose a protection, and neither the pool nor the pod's namespace allows this.
func (e *evaluation) losses(i int, v Verdict) Verdict {
	p := e.Pools.At(i)
	for k := range losses {
		l := &losses[k]
		if e.req.Tenant == nil || !p.Loses(l.loss) || slices.Contains(p.Burst.Allow, l.loss) {
			continue
		}
		if what, ok := e.req.Tenant.Lost[l.loss]; ok {
			return closed(l.reason, what)
		}
	}
	return v
}

// onlyWhenFull closes the gate if the pod asks for burst nodes, or rules out all VMs, and may not do so. Otherwise, the
// pod could burst at any time, because no earlier pool can grow for it.
func (e *evaluation) onlyWhenFull(_ int, v Verdict) Verdict {
	if e.req.Tenant == nil || e.req.Tenant.MayAsk {
		return v
	}
	if e.a.asks {
		return closed(reasonOnlyWhenFull, "the pod selects the burst pool itself")
	}
	if m := e.a.ownMismatch(); !m.none() {
		return closed(reasonOnlyWhenFull, m.String())
	}
	return v
}

// ownMismatch returns a mismatch of the pod's own choice if the nodes of all regular pools have mismatches. Taints are
// not the pod's choice. Unlike a.applicable, ownMismatch expects that future nodes of a group have no labels that no VM
// is known to have. A pool without known node groups might run the pod.
func (r *Rule) ownMismatch(pod *corev1.Pod, a *Assessment, view *nodegroups.View) mismatch {
	needs := slices.Concat(alike.TopologyKeys(pod))
	var vmLabels map[string]bool
	var own mismatch
	for i, groups := range a.applicable {
		if len(groups) == 0 {
			return mismatch{}
		}
		for k, m := range groups {
			if g := &view.Pools[i].Groups[k]; m.none() && (len(needs) > 0 || len(g.NodeTemplates) == 0 || g.Open) {
				if vmLabels == nil {
					vmLabels = labelsOf(view.Pools[:r.Pools.Regular()])
				}
				m = notApplicable(pod, a.requests, func(yield func(newNode) bool) {
					for n := range nodesOf(r.Pools.At(i), g) {
						if n.needs, n.vmLabels = needs, vmLabels; !yield(n) {
							return
						}
					}
				})
			}
			if m.none() {
				return m
			}
			if m.what != mismatchTaint && own.none() {
				own = m
			}
		}
	}
	return own
}

// labelsOf returns the keys of all labels that nodes of the pools are known to have.
func labelsOf(pools []nodegroups.Pool) map[string]bool {
	keys := map[string]bool{}
	for i := range pools {
		for k := range pools[i].Groups {
			for _, template := range pools[i].Groups[k].NodeTemplates {
				for _, key := range slices.AppendSeq(slices.Clone(template.Varied), maps.Keys(template.Labels)) {
					keys[key] = true
				}
			}
		}
	}
	return keys
}
