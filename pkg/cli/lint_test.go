package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/must"
)

// TestLint: what lint prints with and without a cluster, a scheduler, rights and files. Its codes are tested in pkg/lint.
func TestLint(t *testing.T) {
	const aks, quota = "../lint/testdata/aks.json", "../lint/testdata/usages.json"
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	text := strings.NewReplacer(`"networkPluginMode": null`, `"networkPluginMode": "overlay"`, `"priority"`, `"random"`).Replace(string(must.ReadFile(t, aks)))
	must.NoError(t, os.WriteFile(overlay, []byte(text), 0o600))
	s := newServer(t)
	expander := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: expanderName}, Data: map[string]string{expanderKey: "20: [user]\n10: [system]"}}

	plain := func(args ...string) string { return strings.ReplaceAll(s.run(args...), overlay, "overlay.json") }
	local := []string{plain("lint", "--local", "--aks", aks), plain("lint", "--local", "--aks", overlay), plain("lint", "--local"), plain("lint", "--local", "--aks", quota),
		plain("lint", "--local", "--quota", "none.json")}
	golden(t, "lint-local", strings.Join(local, "\n"))
	if got := s.runWith(text, "lint", "--local", "--aks=-", "-o", "name"); !strings.Contains(got, "VirtualNodeImpossible\nExpanderNotPriority\n(exit status 1)") {
		t.Error(got)
	}

	before := s.run("lint")
	s.put(full(t).published(0))
	s.put(expander)
	clean := s.run("lint", "--aks", aks, "--quota", quota)
	expander.Data[expanderKey] = "10: [user]\n20: [system]"
	s.put(expander)
	disorder := s.run("lint")
	s.forbid("get /api/v1/namespaces/kube-system")
	forbidden := s.run("lint")
	golden(t, "lint", strings.Join([]string{before, clean, disorder, forbidden}, "\n"))
	if got := s.run("lint", "-o", "json"); !strings.Contains(got, `"kind": "LintReport"`) || !strings.Contains(got, `"notChecked": [`) {
		t.Error(got)
	}
	s.forbid("get /version")
	if got := s.run("lint"); !strings.Contains(got, "nothing could be checked") || !strings.Contains(got, "(exit status 2)") {
		t.Error(got)
	}
}

// TestLintKarpenter: a NodePool without limits is a finding.
func TestLintKarpenter(t *testing.T) {
	w := full(t, func(args *configv1.PoolPriorityArgs) {
		args.Pools[0].ClusterAutoscaler, args.Pools[0].Karpenter = nil, &configv1.KarpenterSource{NodePool: "default"}
	})
	s := newServer(t, w.published(0))
	s.putNodePool("default", map[string]any{})
	if got := s.run("lint"); !strings.Contains(got, "NoLimits: NodePool default") || strings.Contains(got, "ExpanderOrder") {
		t.Error(got)
	}
	s.putNodePool("default", map[string]any{"limits": map[string]any{"cpu": "100"}})
	if got := s.run("lint"); !strings.Contains(got, "Found no problem") {
		t.Error(got)
	}
}
