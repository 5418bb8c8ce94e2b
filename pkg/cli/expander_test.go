package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// TestExpander: the printed ConfigMap passes the comparison of --diff, and wrong ones do not.
func TestExpander(t *testing.T) {
	const order = `apiVersion: v1
kind: ConfigMap
metadata:
  name: cluster-autoscaler-priority-expander
  namespace: kube-system
data:
  priorities: |-
    20:
    - ^aks-userpool-[0-9]+-vmss$
    10:
    - ^aks-systempool-[0-9]+-vmss$
`
	const userLower = "and aks-systempool-33037761-vmss (pool system) has "
	s := newServer(t, full(t).published(0))
	if diff := cmp.Diff("$ kubectl pools expander\n"+order, s.run("expander")); diff != "" {
		t.Errorf("-want,+got:\n%s", diff)
	}
	if got := s.run("expander", "--diff"); !strings.HasSuffix(got, "it does not exist\n(exit status 1)\n") {
		t.Error(got)
	}
	_, printed, _ := strings.Cut(order, "|-\n")
	for _, tc := range []struct{ name, priorities, want string }{
		{"as printed", printed, ""},
		{"by other numbers and patterns", "7: [userpool]\n3: [.*]", ""},
		{"the system pool first", "50: [system]\n20: [user]", userLower + "priority 50"},
		{"equal", "1: [.*]", userLower + "priority 1"},
		{"the lowest that wins", "-1: [user]\n-9: [system]", ""},
		{"only negative ones", "-5: [user]\n-9: [system]", "(pool user) has priority -5, which is below -1 and never wins, " + userLower + "priority -9"},
		{"one never wins", "-2: [user]\n0: [system]", "(pool user) has priority -2, which is below -1 and never wins"},
		{"no pattern for the user pool", "5: [system]", "(pool user) has no priority, " + userLower + "priority 5"},
		{"no pattern for the system pool", "5: [user]", ""},
		{"the highest of several counts", "30: [system]\n20: [user]\n10: [.*]", userLower + "priority 30"},
		{"no list", "20: user", "the autoscaler cannot read it: keys must be numbers without quotes, and each needs a list of patterns"},
		{"keys in quotes", "\"2\": [user]\n\"1\": [system]", "an autoscaler before 1.35 cannot read it: keys must be numbers without quotes"},
		{"fractions", "2.5: [user]\n1.5: [system]", "the autoscaler cannot read it"},
		{"no pattern", `20: ["*"]`, "of priority 20 is wrong: error parsing regexp: missing argument to repetition operator"},
		{"nothing", "", "it has no key priorities, or an empty one"},
		{"a comment only", "# 20: [user]", "has no priority"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: expanderName}, Data: map[string]string{expanderKey: tc.priorities}})
			got := s.run("expander", "--diff")
			if strings.Contains(got, "(exit status 1)") != (tc.want != "") || !strings.Contains(got, tc.want) {
				t.Errorf("want %q in:\n%s", tc.want, got)
			}
		})
	}
	s.forbid("get /api/v1/namespaces/kube-system")
	if got := s.run("expander", "--diff"); !strings.Contains(got, "you may not get configmaps/"+expanderName) || !strings.Contains(got, "(exit status 2)") {
		t.Error(got)
	}
}

// TestExpanderOfKarpenter: the command prints the NodePools' weights, and compares them.
func TestExpanderOfKarpenter(t *testing.T) {
	w := full(t, func(args *configv1.PoolPriorityArgs) {
		for i, name := range []string{"spot", "general"} {
			args.Pools[i].ClusterAutoscaler, args.Pools[i].Karpenter = nil, &configv1.KarpenterSource{NodePool: name}
		}
	})
	s := newServer(t, w.published(0))
	want := `$ kubectl pools expander
# kubectl patch nodepool spot --type=merge --patch '{"spec":{"weight":100}}'
# kubectl patch nodepool general --type=merge --patch '{"spec":{"weight":99}}'
`
	if diff := cmp.Diff(want, s.run("expander")); diff != "" {
		t.Errorf("-want,+got:\n%s", diff)
	}
	if got := s.run("expander", "--diff"); !strings.Contains(got, "NodePools of karpenter.sh/v1, which is needed") || !strings.Contains(got, "(exit status 2)") {
		t.Error(got)
	}
	s.putNodePool("other", nil)
	if got := s.run("expander", "--diff"); !strings.Contains(got, "there is no nodepools/spot") || !strings.Contains(got, "(exit status 2)") {
		t.Error(got)
	}
	for _, tc := range []struct {
		spot, general map[string]any
		want          string
	}{
		{map[string]any{"weight": int64(20)}, nil, ""},
		{nil, map[string]any{"weight": int64(1)}, "spot (pool user) has weight 0, and general (pool system) has weight 1"},
	} {
		s.putNodePool("spot", tc.spot)
		s.putNodePool("general", tc.general)
		if got := s.run("expander", "--diff"); strings.Contains(got, "(exit status 1)") != (tc.want != "") || !strings.Contains(got, tc.want) {
			t.Errorf("want %q in:\n%s", tc.want, got)
		}
	}
}

// putNodePool creates or replaces a NodePool.
func (s *server) putNodePool(name string, spec map[string]any) {
	s.objects["/apis/karpenter.sh/v1/nodepools/"+name] = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": spec}}
}
