package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// TestInit: what init prints for clusters with the cluster autoscaler, with Karpenter, without either, and without rights.
// Each is a valid configuration.
func TestInit(t *testing.T) {
	node := func(name string, labels ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		for i := 0; i < len(labels); i += 2 {
			n.Labels[labels[i]] = labels[i+1]
		}
		return n
	}
	aks := func(name, agentPool, mode string) *corev1.Node {
		return node(name, "kubernetes.azure.com/agentpool", agentPool, "kubernetes.azure.com/mode", mode)
	}
	virtual := node("virtual-node-aci-linux", "type", "virtual-kubelet")
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status"}, Data: map[string]string{
		"status": "autoscalerStatus: Running\nnodeGroups: [{name: aks-userpool-1-vmss}]\n"}}
	for _, tc := range []struct {
		name   string
		change func(*server)
		args   []string
	}{
		{"init-aks", func(s *server) {
			for _, n := range []*corev1.Node{aks("a", "systempool", "system"), aks("b", "userpool", "user"), aks("c", "other", "user"), virtual} {
				s.put(n)
			}
			s.put(status)
		}, []string{"--aks=../lint/testdata/aks.json", "--quota=../lint/testdata/usages.json", "--spot"}},
		{"init-karpenter", func(s *server) {
			s.put(node("k", "karpenter.sh/nodepool", "general"))
			s.put(aks("a", "systempool", "system"))
			s.put(virtual)
			nodePool := func(name string, weight int64) unstructured.Unstructured {
				return unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": map[string]any{"name": name}, "spec": map[string]any{"weight": weight}}}
			}
			s.objects["/apis/karpenter.sh/v1/nodepools"] = &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePoolList"},
				Items: []unstructured.Unstructured{nodePool("general", 10), nodePool("aci", 50)}}
		}, nil},
		{"init-elsewhere", func(s *server) {
			s.put(node("control", "node-role.kubernetes.io/control-plane", ""))
			s.put(node("large", corev1.LabelInstanceTypeStable, "Large.2"))
			s.put(node("true", corev1.LabelInstanceTypeStable, "true"))
			s.put(node("plain"))
			s.forbid("get /api/v1/namespaces/kube-system", "get /apis/karpenter.sh")
		}, nil},
		{"init-alone", func(s *server) {
			s.put(node("control", "node-role.kubernetes.io/control-plane", ""))
			s.put(status)
		}, []string{"--quota=testdata/cores.json"}},
	} {
		s := newServer(t)
		tc.change(s)
		out := s.run(append([]string{"init"}, tc.args...)...)
		golden(t, tc.name, out)
		if _, _, err := configv1.Load([]byte(out[strings.Index(out, "\n"):])); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	s := newServer(t)
	for args, want := range map[string]string{"": "make no valid configuration: profile \"pool-priority-scheduler\": pools: Required value", "--aks=none": "--aks=none: ", "-o json": "init has no --output"} {
		if out := s.run(append([]string{"init"}, strings.Fields(args)...)...); !strings.Contains(out, want) || !strings.Contains(out, "(exit status 2)") {
			t.Errorf("%s", out)
		}
	}
}
