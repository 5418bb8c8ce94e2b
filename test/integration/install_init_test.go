package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestInit: what kubectl pools init prints for a cluster passes lint, and places pods there as the shipped file for such a
// cluster does.
func TestInit(t *testing.T) {
	t.Parallel()
	const key = "kubernetes.azure.com/scalesetpriority"
	user, system := vms("userpool", "user", 1, 1, 2, 10), vms("systempool", "system", 1, 1, 1, 5)
	spot := vms("spotpool", "user", 1, 1, 1, 20)
	isSpot := func(n *corev1.Node) bool { return n.Labels[key] == "spot" }
	spot.Labels, spot.Taints = map[string]string{key: "spot"}, []corev1.Taint{{Key: key, Value: "spot", Effect: corev1.TaintEffectNoSchedule}}
	for _, tc := range []struct {
		name   string
		scales bool
		pools  []devcluster.Pool
		flags  []string
		change func(*env)
		size   string
		tiers  []referee.Tier
		want   map[string]int // how many pods are in each pool; "" for pending ones
	}{
		{name: "aks", scales: true, pools: []devcluster.Pool{user, system}, size: "500m",
			tiers: []referee.Tier{suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier()}, want: map[string]int{"userpool": 8, "systempool": 4, "aci": 3}},
		{name: "spot", scales: true, pools: []devcluster.Pool{spot, user, system}, flags: []string{"--spot"}, size: "500m",
			tiers: []referee.Tier{{Name: "spot", Max: 1, Owns: isSpot}, {Name: "on-demand", Max: 2, Owns: func(n *corev1.Node) bool {
				return n.Labels[devcluster.ModeLabel] == "user" && !isSpot(n)
			}}, suite.SystemTier(1), suite.VirtualTier()}, want: map[string]int{"spotpool": 4, "userpool": 8, "systempool": 4, "aci": 3}},
		{name: "static", pools: []devcluster.Pool{user, system}, size: "500m",
			tiers: []referee.Tier{suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier()}, want: map[string]int{"userpool": 4, "systempool": 4, "aci": 3}},
		{name: "no virtual node", scales: true, pools: []devcluster.Pool{user, system}, size: "500m", change: func(e *env) {
			e.VirtualNode.Stop()
			must.NoError(e, e.Client.CoreV1().Nodes().Delete(e.ctx, devcluster.VirtualNodeName, metav1.DeleteOptions{}))
		}, tiers: []referee.Tier{suite.UserTier(2), suite.SystemTier(1)}, want: map[string]int{"userpool": 8, "systempool": 4, "": 3}},
		{name: "karpenter", pools: []devcluster.Pool{system}, size: "100m", change: func(e *env) {
			e.rbac = karpenterRBAC
			e.karpenter = must.Get(e.StartKarpenter(e.ctx, []devcluster.InstanceType{instanceType("s-1", 1)}))(e)
			must.NoError(e, e.ApplyFile(e.ctx, "testdata/nodepool.yaml"))
		}, tiers: []referee.Tier{suite.UserTier(0), suite.SystemTier(1), suite.VirtualTier()}, want: map[string]int{"agentpool": 18, "systempool": 20, "aci": 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var autoscaler *devcluster.AutoscalerOptions
			if tc.scales {
				autoscaler = fast()
			}
			e := start(t, autoscaler, tc.pools...)
			e.Eventually(20*time.Second, func() string {
				status, err := e.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(e.ctx, "cluster-autoscaler-status", metav1.GetOptions{})
				if tc.scales && (err != nil || !strings.Contains(status.Data["status"], "userpool")) {
					return fmt.Sprint("the autoscaler has not said anything yet: ", err)
				}
				return ""
			})
			if tc.change != nil {
				tc.change(e)
			}
			file := filepath.Join(t.TempDir(), "config.yaml")
			_, printed, _ := strings.Cut(e.pools(append([]string{"init"}, tc.flags...)...), "\n")
			must.NoError(t, os.WriteFile(file, []byte(printed), 0o600))
			t.Log(printed)
			if out := e.pools("lint", "--filename="+file); strings.Contains(out, "ERROR") {
				t.Fatal(out)
			}
			e.control(file)
			e.schedule(file, tc.tiers...)
			pods := 0
			for _, n := range tc.want {
				pods += n
			}
			e.Create(suite.Deployment("web", int32(pods), tc.size, func(t *corev1.PodTemplateSpec) {
				t.Spec.Tolerations = append(t.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
			}))
			e.Lands(90*time.Second, "web", tc.want)
		})
	}
}
