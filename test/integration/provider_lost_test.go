package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// createSilentNode creates a ready node of a virtual kubelet that starts no pods.
func (e *env) createSilentNode(name string) {
	e.Helper()
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("100")}
	must.Do(e)(e.Client.CoreV1().Nodes().Create(e.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"type": "virtual-kubelet", corev1.LabelOSStable: "linux", corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{}))
	e.updateNode(name, func(n *corev1.Node) {
		now := metav1.Now()
		n.Status.Capacity, n.Status.Allocatable = capacity, capacity
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}}
	})
}

// TestLost: if the provider has refused a pod, the scheduler evicts the pod at once. If a pod has not started within
// startWithin, the scheduler evicts it then. The controller does not change these pods before they are evicted.
func TestLost(t *testing.T) {
	t.Parallel()
	const config, silent = "testdata/lost.yaml", "silent" // startWithin 5s
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.leastRights()
	vm := e.nodesOf("userpool")[0].Name
	for _, node := range []string{vm, devcluster.VirtualNodeName} {
		e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	}
	e.schedule(config, suite.UserTier(1), suite.VirtualTier())
	e.control(config)
	e.waitGated(true)
	e.createSilentNode(silent)
	d := suite.Deployment("web", 2, "100m", endsFast)
	e.Create(d)
	var young []corev1.Pod
	e.Eventually(20*time.Second, func() string {
		if young = e.Pods("web"); len(young) != 2 || young[0].Spec.NodeName != silent || young[1].Spec.NodeName != silent {
			return fmt.Sprint(e.Placed("web"))
		}
		return ""
	})
	refused := young[0].DeepCopy()
	refused.Status.Reason, refused.Status.Message = refusal.ReasonProviderFailed, `api call: 409 {"error":{"code":"ContainerGroupQuotaReached","message":"quota"}}`
	must.Do(t)(e.Client.CoreV1().Pods(namespace).UpdateStatus(e.ctx, refused, metav1.UpdateOptions{}))
	if said := e.eventOn(namespace, "Pod", refused.Name, "BurstEvicted"); !strings.Contains(said, "ContainerGroupQuotaReached") {
		t.Errorf("the event on the refused pod says %q", said)
	}
	if said, want := e.eventOn(namespace, "Pod", young[1].Name, "BurstEvicted"), "evicted from burst pool aci: it did not start within 5s"; said != want {
		t.Errorf("the event on the late pod says %q, want %q", said, want)
	}
	for _, p := range e.Pods("web") {
		if slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == configv1.GateTaintKey }) {
			t.Errorf("pod %s has not started and was given the gate toleration", p.Name)
		}
	}
	e.updateNode(vm, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 2})
}
