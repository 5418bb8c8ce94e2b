package pool

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// unnamed is the value of the gate taint that versions kept which knew of one installation in a cluster only.
const unnamed = ""

// ListOf returns the list that the (validated) arguments state, for their installation.
func ListOf(args *configv1.PoolPriorityArgs) (List, error) {
	l, err := NewList(args.Pools)
	if err != nil {
		return List{}, err
	}
	l.installation = cmp.Or(args.Installation, configv1.DefaultInstallation)
	for i := range l.pools {
		l.pools[i].installation = l.installation
	}
	return l, nil
}

// Installation is the name of the installation whose list it is: the value of its gate taint.
func (l List) Installation() string { return l.installation }

// GateTaint is the installation's gate taint.
func (l List) GateTaint() corev1.Taint {
	return corev1.Taint{Key: configv1.GateTaintKey, Value: l.installation, Effect: corev1.TaintEffectNoSchedule}
}

// Owns reports whether the taint is the installation's gate taint, whatever its effect.
func (l List) Owns(t corev1.Taint) bool {
	return t.Key == configv1.GateTaintKey && t.Value == l.installation
}

// IsUnnamed reports whether the taint is a gate taint, whatever its effect, that does not say whose it is: of a version before there could be
// several installations.
func IsUnnamed(t corev1.Taint) bool { return t.Key == configv1.GateTaintKey && t.Value == unnamed }

// IsGated reports whether a scheduler of the installation may look past the node's gate taint, which is there: it is the installation's, or
// has no name because the controller has not given it one yet.
func (l List) IsGated(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return IsGateTaint(t) && (l.Owns(t) || IsUnnamed(t)) })
}

// OtherOf returns the name of the other installation whose gate taint the node has, or "". There is no room for ours then: of taints of one key and
// effect, the API server allows one.
func (l List) OtherOf(node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		if IsGateTaint(t) && !l.Owns(t) && !IsUnnamed(t) {
			return t.Value
		}
	}
	return ""
}

// Tolerations are the tolerations that pods are given for the nodes of a burst pool: those of its configuration and that of the
// installation's gate taint. A pod gets them once it is bound, never before.
func (p *Pool) Tolerations() []corev1.Toleration {
	return append(slices.Clone(p.Burst.Tolerations), tolerating(p.installation))
}

// LookedPast are the tolerations by which a scheduler looks past the taints of a burst pool's nodes, for pods that the gate lets in: those that
// pods are given, and that of a gate taint that has no name yet.
func (p *Pool) LookedPast() []corev1.Toleration { return append(p.Tolerations(), tolerating(unnamed)) }

func tolerating(installation string) corev1.Toleration {
	return corev1.Toleration{Key: configv1.GateTaintKey, Operator: corev1.TolerationOpEqual, Value: installation, Effect: corev1.TaintEffectNoSchedule}
}

// IsGateTaint reports whether the taint is the gate taint of any installation.
func IsGateTaint(t corev1.Taint) bool {
	return t.Key == configv1.GateTaintKey && t.Effect == corev1.TaintEffectNoSchedule
}

// IsGated reports whether the node has the gate taint of any installation: autoscalers and other schedulers do not count on it then.
func IsGated(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, IsGateTaint) }
