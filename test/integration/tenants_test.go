package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// hardened returns a pod that restricted Pod Security admits and that fits no VM beside another pod. Its annotation
// asks to burst whatever it uses.
func hardened(namespace, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"poolpriority.dev/burst": "Always"}},
		Spec: corev1.PodSpec{
			SchedulerName:   devcluster.SchedulerName,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "web", Image: "web",
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				Resources:       corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// TestTenantsBurst: with tenants, VMs are full, and pods of several namespaces could burst. Each waits, and its
// condition names the label that lets it burst. It bursts once an administrator has set the label on the namespace.
func TestTenantsBurst(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.updateNode(devcluster.VirtualNodeName, func(n *corev1.Node) { n.Labels["kubernetes.azure.com/managed"] = "false" })
	e.schedule(replaced(t, "testdata/fixed.yaml", "      pools:\n", "      tenants: true\n      pools:\n"), suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("filler", 2, "1500m"))
	e.Lands(20*time.Second, "filler", map[string]int{"userpool": 1, "systempool": 1})

	const burst = "poolpriority.dev/burst"
	for name, labels := range map[string]map[string]string{
		"unlabelled": nil, "denied": {burst: "Allowed"}, "exotic": {burst: "Allowed"}, "free": {burst: "Allowed"},
		"restricted": {burst: "Allowed", "pod-security.kubernetes.io/enforce": "restricted"},
	} {
		must.Do(t)(e.Client.CoreV1().Namespaces().Create(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))
	}
	must.Do(t)(e.Client.NetworkingV1().NetworkPolicies("denied").Create(e.ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default-deny"}}, metav1.CreateOptions{}))
	waiting := map[string]string{} // labels by NAMESPACE/NAME
	for label, pods := range map[string][]*corev1.Pod{
		burst:                                    {hardened("unlabelled", "web")},
		"poolpriority.dev/network-policy-loss":   {hardened("denied", "web")},
		"poolpriority.dev/security-context-loss": {hardened("restricted", "web")},
		"poolpriority.dev/burst-nodes": {
			hardened("exotic", "selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.azure.com/managed": "false"} }),
		},
	} {
		for _, pod := range pods {
			e.createSoon(pod)
			waiting[pod.Namespace+"/"+pod.Name] = label
		}
	}
	e.createSoon(hardened("free", "web"))
	e.bursts("free/web")
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		e.Eventually(20*time.Second, func() string {
			if node, said := e.placeOf(name); node != "" || !strings.Contains(said, waiting[name]+"=Allowed") {
				return fmt.Sprintf("%s is on node %q, its condition is %q, want the label %s", name, node, said, waiting[name])
			}
			return ""
		})
	}
	e.Stays(2*time.Second, func() string {
		for name := range waiting {
			if node, said := e.placeOf(name); node != "" {
				return fmt.Sprintf("%s is on node %s: %s", name, node, said)
			}
		}
		return ""
	})
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		namespace, _, _ := strings.Cut(name, "/")
		patch := must.Get(json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{waiting[name]: "Allowed"}}}))(t)
		must.Do(t)(e.Client.CoreV1().Namespaces().Patch(e.ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{}))
		e.bursts(name)
	}
	if said := e.eventOn("denied", "Pod", "web", "RunsDifferently"); !strings.Contains(said, "without the NetworkPolicy default-deny") {
		t.Errorf("the event says %q", said)
	}
	if said := e.eventOn("restricted", "Pod", "web", "RunsDifferently"); !strings.Contains(said, "restricted Pod Security") {
		t.Errorf("the event says %q", said)
	}
}

// createSoon creates the pod as soon as its namespace has its ServiceAccount.
func (e *env) createSoon(pod *corev1.Pod) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		_, err := e.Client.CoreV1().Pods(pod.Namespace).Create(e.ctx, pod, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
}

// placeOf returns the node of the pod, and the message of its condition PodScheduled.
func (e *env) placeOf(name string) (node, said string) {
	e.Helper()
	namespace, name, _ := strings.Cut(name, "/")
	pod := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, name, metav1.GetOptions{}))(e)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			said = c.Message
		}
	}
	return pod.Spec.NodeName, said
}

// bursts waits until the pod is on the virtual node.
func (e *env) bursts(name string) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		if node, said := e.placeOf(name); node != devcluster.VirtualNodeName {
			return fmt.Sprintf("%s is on node %q: %s", name, node, said)
		}
		return ""
	})
}
