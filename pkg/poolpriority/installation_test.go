package poolpriority

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestGateTaintOfAnotherInstallation: the scheduler tolerates its own installation's gate taint, and no other.
func TestGateTaintOfAnotherInstallation(t *testing.T) {
	for _, tc := range []struct {
		name, value, want string
	}{
		{"its own", "blue", "virtual"},
		{"another's", "green", ""},
		{"that of an installation with the default name", configv1.DefaultInstallation, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := aks(t)
			for _, c := range config.Profiles[0].PluginConfig {
				if args, ok := c.Args.(*configv1.PoolPriorityArgs); ok {
					args.Installation = "blue"
				}
			}
			h := newHarness(t, config)
			node := virtualNode("virtual")
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: configv1.GateTaintKey, Value: tc.value, Effect: v1.TaintEffectNoSchedule})
			h.addNodes(node)
			h.setCapacity(nodegroups.Full, nodegroups.Full)
			got, err := h.schedule(pod("p").Obj())
			if got != tc.want || tc.want == "" && !strings.Contains(err.Error(), "untolerated taint") {
				t.Errorf("the pod is on %q (%v), want %q", got, err, tc.want)
			}
		})
	}
}
