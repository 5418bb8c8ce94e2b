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

// Owns reports whether the taint is the installation's gate taint, whatever its effect.
func (l List) Owns(t corev1.Taint) bool {
	return t.Key == configv1.GateTaintKey && t.Value == l.installation
}

// HasGateTaint reports whether the node has the installation's gate taint.
func (l List) HasGateTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return IsGateTaint(t) && l.Owns(t) })
}

// OtherOf returns the name of the other installation whose gate taint the node has, or "". Such a node cannot have our
// gate taint as well, because the API server allows only one taint for each key and effect.
func (l List) OtherOf(node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		if IsGateTaint(t) && !l.Owns(t) {
			return t.Value
		}
	}
	return ""
}

// Tolerations returns the tolerations that pods get for the nodes of a burst pool: the configured tolerations, and the
// toleration of the installation's gate taint. A pod gets them once it is bound, never before.
func (p *Pool) Tolerations() []corev1.Toleration {
	return append(slices.Clone(p.Burst.Tolerations), corev1.Toleration{
		Key: configv1.GateTaintKey, Operator: corev1.TolerationOpEqual, Value: p.installation, Effect: corev1.TaintEffectNoSchedule,
	})
}

// IsGateTaint reports whether the taint is the gate taint of any installation.
func IsGateTaint(t corev1.Taint) bool {
	return t.Key == configv1.GateTaintKey && t.Effect == corev1.TaintEffectNoSchedule
}

// HasGateTaint reports whether the node has the gate taint of any installation. Autoscalers and other schedulers expect
// no pod to fit on such a node.
func HasGateTaint(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, IsGateTaint) }
