package pool

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"

	"poolpriority.dev/scheduler/test/must"
)

// TestInstallation: which installation a gate taint belongs to, and which gate taints a burst pool's pods tolerate.
func TestInstallation(t *testing.T) {
	list, err := ListOf(&configv1.PoolPriorityArgs{Installation: "blue", Pools: []configv1.Pool{
		{Name: "aci", NodeSelector: selector("type", "virtual-kubelet"), Burst: &configv1.Burst{}}}})
	must.NoError(t, err)
	if got := list.GateTaint(); list.Installation() != "blue" || got.ToString() != "poolpriority.dev/gate=blue:NoSchedule" {
		t.Errorf("%s has the gate taint %s", list.Installation(), got.ToString())
	}
	taint := func(value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: configv1.GateTaintKey, Value: value, Effect: effect}
	}
	for _, tc := range []struct {
		name                        string
		taint                       corev1.Taint
		owns, gated, any, tolerated bool
		other                       string
	}{
		{"its own", taint("blue", corev1.TaintEffectNoSchedule), true, true, true, true, ""},
		{"another's", taint("green", corev1.TaintEffectNoSchedule), false, false, true, false, "green"},
		{"that of an installation with the default name", taint(configv1.DefaultInstallation, corev1.TaintEffectNoSchedule), false, false, true, false, configv1.DefaultInstallation},
		{"its own, with an effect that hides it from nobody", taint("blue", corev1.TaintEffectPreferNoSchedule), true, false, false, false, ""},
		{"another key", corev1.Taint{Key: "other", Value: "blue", Effect: corev1.TaintEffectNoSchedule}, false, false, false, false, ""},
	} {
		node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{tc.taint}}}
		in := func(tolerations []corev1.Toleration) bool {
			return slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(klog.Background(), &tc.taint, true) })
		}
		if list.Owns(tc.taint) != tc.owns || list.HasGateTaint(node) != tc.gated || HasGateTaint(node) != tc.any || in(list.At(0).Tolerations()) != tc.tolerated {
			t.Errorf("%s: owns %v, gated %v, gated by anybody %v, tolerated %v", tc.name, list.Owns(tc.taint), list.HasGateTaint(node), HasGateTaint(node), in(list.At(0).Tolerations()))
		}
		if got := list.OtherOf(node); got != tc.other {
			t.Errorf("%s: of %q, want %q", tc.name, got, tc.other)
		}
	}
	byDefault, err := ListOf(&configv1.PoolPriorityArgs{})
	if err != nil || byDefault.Installation() != configv1.DefaultInstallation {
		t.Errorf("without a name it is %q, %v", byDefault.Installation(), err)
	}
}
