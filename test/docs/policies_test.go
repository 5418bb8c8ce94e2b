package docs

import (
	"go/ast"
	"go/types"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/must"
)

// TestPatchesOfPolicies: docs/policies.md shows the same patches for a second installation as test/integration uses.
func TestPatchesOfPolicies(t *testing.T) {
	page := must.ReadFile(t, root+"/docs/policies.md")
	tested := must.ReadFile(t, root+"/test/integration/testdata/green/kustomization.yaml")
	_, example, _ := strings.Cut(string(page), "    patches:\n")
	n := 0
	for _, line := range strings.Split(example, "\n") {
		line, is := strings.CutPrefix(line, "    ")
		if !is {
			break
		}
		if n++; !strings.Contains(string(tested), "\n"+line+"\n") {
			t.Errorf("%q is not in the kustomization that is tested", line)
		}
	}
	if n < 9 {
		t.Errorf("the page has %d lines of patches", n)
	}
}

// TestAnnotationsOfPolicies: the policies of least-rights list the annotations that the code writes, and no others.
func TestAnnotationsOfPolicies(t *testing.T) {
	order, _ := scalein.Annotations(pool.List{}, &corev1.Node{}, map[string]string{scalein.PoolAnnotation: "gone"})
	controller := sets.KeySet(order) // the scheduler writes these, too
	scheduler := controller.Clone()
	names := map[string]string{"refusal.BoundAtAnnotation": refusal.BoundAtAnnotation, "gate.DecisionAnnotation": gate.DecisionAnnotation, "CostAnnotation": scalein.CostAnnotation}
	inCode(t, func(path string, node ast.Node) {
		assign, ok := node.(*ast.AssignStmt) // annotations[NAME] = …
		if !ok {
			return
		}
		for _, left := range assign.Lhs {
			index, ok := left.(*ast.IndexExpr)
			if !ok {
				continue
			}
			if name := types.ExprString(index.Index); names[name] != "" {
				scheduler.Insert(names[name])
			} else if strings.HasSuffix(name, "Annotation") || strings.HasPrefix(name, `"poolpriority.dev/`) {
				t.Errorf("%s writes the annotation %s: add it to this test and to a policy", path, name)
			}
		}
	})
	want := map[string]sets.Set[string]{"pool-priority-controller-pods": controller, "pool-priority-scheduler-bindings": scheduler,
		"pool-priority-annotations": scheduler.Clone().Delete(scalein.CostAnnotation)}
	for _, text := range strings.Split(string(must.ReadFile(t, root+"/manifests/components/least-rights/policy.yaml")), "\n---\n") {
		policy, listed := &admissionregistrationv1.ValidatingAdmissionPolicy{}, []string{}
		must.NoError(t, yaml.Unmarshal([]byte(text), policy))
		for _, v := range policy.Spec.Variables {
			if v.Name == "ours" {
				must.NoError(t, yaml.Unmarshal([]byte(v.Expression), &listed)) // a list in quotes is both CEL and YAML
			}
		}
		if policy.Kind == "ValidatingAdmissionPolicy" && !want[policy.Name].Equal(sets.New(listed...)) {
			t.Errorf("%s lists %q, and the code writes %q", policy.Name, listed, sets.List(want[policy.Name]))
		}
		delete(want, policy.Name)
	}
	if len(want) > 0 || len(controller) != 3 || len(scheduler) != 5 {
		t.Errorf("the policies %v are missing, or the code writes too little: %v, %v", want, controller, scheduler)
	}
}
