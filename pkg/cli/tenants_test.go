package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// TestTenants: with tenants, explain says why the pod of a namespace may not burst, and what the administrator can do.
// Without the right to read NetworkPolicies, it says so.
func TestTenants(t *testing.T) {
	waits := func(namespace string, changes ...func(*corev1.Pod)) *corev1.Pod {
		p := pod(held, 42*time.Second, append(changes, reported(41*time.Second, sentenceOf(t, "PoolGrowing")))...)
		p.Namespace = namespace
		return p
	}
	namespace := func(name string, labels ...string) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		for _, label := range labels {
			key, value, _ := strings.Cut(label, "=")
			n.Labels[key] = value
		}
		return n
	}
	const burst, restricted = "poolpriority.dev/burst=Allowed", "pod-security.kubernetes.io/enforce=restricted"
	s := newServer(t, growing(t, func(args *configv1.PoolPriorityArgs) { args.Tenants = true }).published(0),
		namespace("none"), waits("none"),
		namespace("denied", burst, restricted), waits("denied"), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "denied", Name: "default-deny"}},
		namespace("hard", burst, restricted), waits("hard"),
		namespace("exotic", burst), waits("exotic", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.azure.com/managed": "false"} }),
		namespace("trusted", "poolpriority.dev/burst-nodes=Allowed"), waits("trusted"),
	)
	var all []string
	for _, name := range []string{"none", "denied", "hard", "exotic", "trusted"} {
		all = append(all, s.run("explain", held, "-n", name))
	}
	s.forbid("get /apis/networking.k8s.io")
	all = append(all, s.run("explain", held, "-n", "trusted"))
	golden(t, "explain-tenants", strings.Join(all, "\n"))
}
