package docs

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// eventsInCode returns the reasons of the events that the code writes, and the codes of the problems that it publishes.
// The reasons are the literals and constants in calls of Eventf, and the constants whose names begin with event.
func eventsInCode(t *testing.T) map[string]bool {
	t.Helper()
	constants, named, events := map[string]string{}, map[string]bool{}, map[string]bool{}
	take := func(e ast.Expr) {
		if name, ok := e.(*ast.Ident); ok {
			named[name.Name] = true
		} else if text, ok := literal(e); ok && isWord(text) {
			events[text] = true
		}
	}
	inCode(t, func(_ string, node ast.Node) {
		switch n := node.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i >= len(n.Values) {
					continue
				}
				if text, ok := literal(n.Values[i]); ok && isWord(text) {
					constants[name.Name] = text
					if strings.HasPrefix(strings.ToLower(name.Name), "event") {
						events[text] = true
					}
				}
			}
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			if ok && f.Sel.Name == "problemf" {
				take(n.Args[0])
			}
			if !ok || f.Sel.Name != "Eventf" || len(n.Args) < 4 {
				return
			}
			at := 2 // the index of the reason in (object, type, reason, format, …)
			if null, ok := n.Args[1].(*ast.Ident); ok && null.Name == "nil" {
				at = 3 // in (regarding, related, type, reason, action, note, …)
			}
			take(n.Args[at])
		}
	})
	for name := range named {
		if text, ok := constants[name]; ok {
			events[text] = true
		}
	}
	return events
}

// isWord reports whether the text can be the reason of an event.
func isWord(text string) bool {
	return text != "" && text[0] >= 'A' && text[0] <= 'Z' && !strings.ContainsAny(text, " %.:/")
}

// TestEvents: docs/reasons.md has each event and each problem.
func TestEvents(t *testing.T) {
	page := must.Get(markdown.Read(root, "docs/reasons.md"))(t)
	documented := map[string]int{}
	for _, table := range page.Tables {
		if len(table.Header) < 4 || table.Header[0] != "event" {
			continue
		}
		for _, row := range table.Rows {
			documented[row.Cells[0]] = row.Line
		}
	}
	inCode := eventsInCode(t)
	if len(inCode) < 10 {
		t.Errorf("only %d events were found in the code: %v", len(inCode), slices.Sorted(maps.Keys(inCode)))
	}
	for _, event := range slices.Sorted(maps.Keys(inCode)) {
		if documented[event] == 0 {
			t.Errorf("docs/reasons.md has no event %s", event)
		}
		delete(documented, event)
	}
	for event, line := range documented {
		t.Errorf("docs/reasons.md:%d: the code writes no event %s", line, event)
	}
}
