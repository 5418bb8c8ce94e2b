package docs

import (
	"strings"
	"testing"

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
