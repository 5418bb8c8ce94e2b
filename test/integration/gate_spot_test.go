package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestSpot: with overlays/aks-spot, spot VMs are filled first, then on-demand VMs. Ordered spot VMs that do not come
// hold pods only for the spot pool's provisionGrace. A pod that does not tolerate the spot taint never waits for spot
// VMs.
func TestSpot(t *testing.T) {
	t.Parallel()
	const key = "kubernetes.azure.com/scalesetpriority"
	spot := vms("spotpool", "user", 1, 1, 3, 20)
	spot.Labels = map[string]string{key: "spot"}
	spot.Taints = []corev1.Taint{{Key: key, Value: "spot", Effect: corev1.TaintEffectNoSchedule}}
	spot.BootDelay = metav1.Duration{Duration: time.Hour}
	e := start(t, fast(), spot, vms("userpool", "user", 1, 1, 1, 10))
	const grace = 15 * time.Second
	config := replaced(t, root+"/manifests/overlays/aks-spot/config.yaml", "capacity: {provisionGrace: 5m}", "capacity: {provisionGrace: 15s, declineGrace: 5s}")
	e.control(config)
	isSpot := func(n *corev1.Node) bool { return n.Labels[key] == "spot" }
	e.schedule(config, referee.Tier{Name: "spot", Max: 1, Owns: isSpot}, referee.Tier{Name: "on-demand", Max: 1, Owns: func(n *corev1.Node) bool {
		return n.Labels[devcluster.ModeLabel] == "user" && !isSpot(n)
	}}, suite.VirtualTier())
	e.waitGated(true)
	tolerates := func(t *corev1.PodTemplateSpec) {
		t.Spec.Tolerations = append(t.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpEqual, Value: "spot", Effect: corev1.TaintEffectNoSchedule})
	}
	began := time.Now()
	e.Create(suite.Deployment("web", 9, "500m", tolerates)) // each VM has room for 4; two more spot VMs are ordered and do not come
	e.Eventually(90*time.Second, func() string {
		got := e.Placed("web")
		if got["aci"] > 0 && time.Since(began) < grace {
			t.Fatalf("burst after %v, before the ordered spot VMs were late", time.Since(began))
		}
		if !suite.Equal(got, map[string]int{"spotpool": 4, "userpool": 4, "aci": 1}) {
			return fmt.Sprintf("%v; %s", got, e.Said("web"))
		}
		return ""
	})
	t.Logf("the last pod burst after %v", time.Since(began).Round(time.Second))
	e.Create(suite.Deployment("plain", 1, "500m"))
	e.Lands(10*time.Second, "plain", map[string]int{"aci": 1})
}

// returnsToSpot returns a cluster with a spot pool of one VM and an on-demand VM, whose pods return to spot VMs, and four
// pods on the spot VM. lose takes the spot VMs away.
func returnsToSpot(t *testing.T) (e *env, lose func()) {
	const key = "kubernetes.azure.com/scalesetpriority"
	spot := vms("spotpool", "user", 1, 0, 9, 20)
	spot.Labels = map[string]string{key: "spot"}
	e = start(t, nil, spot, vms("userpool", "user", 1, 1, 1, 10))
	e.rbac = returnRBAC
	config := replaced(t, returnConfig, "      - {name: user, nodeSelector: {matchLabels: {kubernetes.azure.com/mode: user}}, fixed: {}}\n",
		"      - {name: spot, nodeSelector: {matchLabels: {"+key+": spot}}, fixed: {}}\n"+
			"      - {name: user, nodeSelector: {matchLabels: {kubernetes.azure.com/mode: user}}, fixed: {}, return: {enabled: true, stableFor: 3s, minAge: 5s, evictionsPerMinute: 60}}\n")
	e.schedule(config, referee.Tier{Name: "spot", Max: 3, Owns: func(n *corev1.Node) bool { return n.Labels[key] == "spot" }}, suite.UserTier(1), suite.VirtualTier())
	e.control(config)
	e.waitGated(true)
	e.Create(suite.Deployment("web", 4, "500m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"spotpool": 4})
	return e, func() {
		t.Helper()
		nodes := e.nodesOf("spotpool")
		for _, n := range nodes {
			must.NoError(t, e.pool("spotpool").Delete(e.ctx, n.Name))
		}
		for _, p := range e.Pods("web") {
			if slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
				must.NoError(t, e.Client.CoreV1().Pods(namespace).Delete(e.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
			}
		}
		e.Lands(30*time.Second, "web", map[string]int{"userpool": 4})
		e.Eventually(20*time.Second, func() string { return e.notReady("web") })
	}
}

// TestBackToSpot: when the spot VM is evicted, its pods run on an on-demand VM. When spot VMs are back, the pods return,
// one after the other and each once.
func TestBackToSpot(t *testing.T) {
	t.Parallel()
	e, lose := returnsToSpot(t)
	lose()
	e.Keeps(8*time.Second, "web", map[string]int{"userpool": 4})
	stop := e.watchEvictions("web", 3)
	e.pool("spotpool").Grow(1)
	e.Lands(90*time.Second, "web", map[string]int{"spotpool": 4})
	e.Keeps(8*time.Second, "web", map[string]int{"spotpool": 4})
	if at := stop(); len(at) != 4 {
		t.Errorf("%d pods were evicted, want 4", len(at))
	}
}

// TestSpotStorm: spot VMs come and go five times within a few minutes. After the first return, later pods stay on the
// on-demand VM for a while, so that the pods are not evicted each time.
func TestSpotStorm(t *testing.T) {
	t.Parallel()
	e, lose := returnsToSpot(t)
	var evicted []int
	for range 5 {
		lose()
		stop := e.watchEvictions("web", 3)
		e.pool("spotpool").Grow(1)
		time.Sleep(25 * time.Second)
		evicted = append(evicted, len(stop()))
	}
	t.Logf("evictions after each of five losses of the spot VM: %v", evicted)
	// The pauses are 36 s and 72 s.
	if total := evicted[0] + evicted[1] + evicted[2] + evicted[3] + evicted[4]; evicted[0] == 0 || total > 12 {
		t.Errorf("%v pods were evicted, want some at first, and at most 12 of 20", evicted)
	}
}
