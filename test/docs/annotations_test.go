package docs

import (
	"go/ast"
	"slices"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// notAnnotations are strings with our prefix that are not names of annotations: the prefix itself, a taint, an API
// version and an index.
var notAnnotations = []string{"poolpriority.dev/", "poolpriority.dev/gate", "poolpriority.dev/v1alpha1", "poolpriority.dev/controller"}

// TestAnnotations: docs/configuration.md has each of our annotations and labels.
func TestAnnotations(t *testing.T) {
	page := must.Get(markdown.Read(root, "docs/configuration.md"))(t)
	documented := map[string]int{}
	for _, table := range page.Tables {
		if table.Header[0] != "annotation" && table.Header[0] != "label" {
			continue
		}
		for _, row := range table.Rows {
			name, _, _ := strings.Cut(row.Cells[0], ":")
			documented[name] = row.Line
		}
	}
	found := 0
	inCode(t, func(path string, node ast.Node) {
		e, ok := node.(ast.Expr)
		if !ok {
			return
		}
		name, ok := literal(e)
		if !ok || !strings.HasPrefix(name, "poolpriority.dev/") || strings.HasPrefix(name, "poolpriority.dev/scheduler") || slices.Contains(notAnnotations, name) {
			return
		}
		found++
		if documented[name] == 0 {
			t.Errorf("docs/configuration.md has no annotation or label %s (%s)", name, path)
		}
	})
	if found < 5 {
		t.Errorf("only %d annotations were found in the code", found)
	}
}
