package pool

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// Installation returns the name of the list's installation, which is the value of its gate taint.
func (l List) Installation() string { return l.installation }

// GateTaint returns the installation's gate taint.
func (l List) GateTaint() corev1.Taint {
	return corev1.Taint{Key: configv1.GateTaintKey, Value: l.installation, Effect: corev1.TaintEffectNoSchedule}
}

// Owns reports whether the taint has the key and the value of the installation's gate taint. The taint's effect does
// not matter.
func (l List) Owns(t corev1.Taint) bool {
	return t.Key == configv1.GateTaintKey && t.Value == l.installation
}

// HasGateTaint reports whether the node has the installation's gate taint.
func (l List) HasGateTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return IsGateTaint(t) && l.Owns(t) })
}

// OtherOf returns the name of another installation if the node has that installation's gate taint, and "" otherwise.
// Such a node cannot also have this installation's gate taint, because the API server allows only one taint for each
// key and effect.
func (l List) OtherOf(node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		if IsGateTaint(t) && !l.Owns(t) {
			return t.Value
		}
	}
	return ""
}

// Tolerations returns the configured tolerations of a burst pool and a toleration of the installation's gate taint. The
// controller adds these tolerations to a pod only after the pod is bound.
func (p *Pool) Tolerations() []corev1.Toleration {
	return append(slices.Clone(p.Burst.Tolerations), corev1.Toleration{
		Key: configv1.GateTaintKey, Operator: corev1.TolerationOpEqual, Value: p.installation, Effect: corev1.TaintEffectNoSchedule,
	})
}

// IsGateTaint reports whether the taint is the gate taint of any installation.
func IsGateTaint(t corev1.Taint) bool {
	return t.Key == configv1.GateTaintKey && t.Effect == corev1.TaintEffectNoSchedule
}

// HasGateTaint reports whether the node has the gate taint of any installation. Autoscalers and other schedulers then
// assume that no pod fits on the node.
func HasGateTaint(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, IsGateTaint) }

// GateTaintTrial returns a node of a burst pool on which a dry run can test whether the gate taint may be set, and the node
// as the dry run changes it. It returns nil if every such node has another installation's gate taint, or there is none.
// If the node already has the gate taint, the dry run removes the taint, because an admission rule might allow a request
// that changes nothing.
func (l List) GateTaintTrial(nodes []corev1.Node) (node, changed *corev1.Node) {
	i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return l.IsBurstNode(&n) && l.OtherOf(&n) == "" })
	if i < 0 {
		return nil, nil
	}
	node = &nodes[i]
	changed = node.DeepCopy()
	changed.Spec.Taints = slices.DeleteFunc(changed.Spec.Taints, l.Owns)
	if !slices.ContainsFunc(node.Spec.Taints, l.Owns) {
		changed.Spec.Taints = append(changed.Spec.Taints, l.GateTaint())
	}
	return node, changed
}
