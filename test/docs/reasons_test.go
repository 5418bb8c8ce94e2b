package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// said is the code and the sentence of a reason.
type said struct{ code, sentence string }

// inCode calls visit with every node of the syntax trees of pkg, which is the shipped code.
func inCode(t *testing.T, visit func(path string, node ast.Node)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			visit(path, node)
			return true
		})
		return nil
	})
	must.NoError(t, err)
}

// literal returns the text of a string literal.
func literal(node ast.Expr) (string, bool) {
	basic, ok := node.(*ast.BasicLit)
	if !ok || basic.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(basic.Value)
	return text, err == nil
}

// reasonsInCode returns the reasons that the code can give: those of the gate, and those of composite literals with a
// Code and a Sentence.
func reasonsInCode(t *testing.T) []said {
	t.Helper()
	var all []said
	add := func(s said) {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, r := range gate.Reasons(func(gate.Kind) bool { return true }) {
		add(said{r.Code, r.Sentence})
	}
	inCode(t, func(_ string, node ast.Node) {
		composite, ok := node.(*ast.CompositeLit)
		if !ok {
			return
		}
		var s said
		for _, element := range composite.Elts {
			pair, ok := element.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			key, isName := pair.Key.(*ast.Ident)
			text, isText := literal(pair.Value)
			switch {
			case !isName || !isText:
			case key.Name == "Code":
				s.code = text
			case key.Name == "Sentence":
				s.sentence = text
			}
		}
		if s.code != "" && s.sentence != "" {
			add(s)
		}
	})
	return all
}

// TestReasons: docs/reasons.md has a row without empty cells for each reason and its sentence, and no other rows.
func TestReasons(t *testing.T) {
	page := must.Get(markdown.Read(root, "docs/reasons.md"))(t)
	documented := map[said]int{}
	for _, table := range page.Tables {
		if len(table.Header) < 4 || table.Header[0] != "code" {
			continue
		}
		stem := strings.TrimSpace(strings.TrimSuffix(table.Header[1], "…")) // what shortened sentences begin with
		for _, row := range table.Rows {
			s := said{row.Cells[0], row.Cells[1]}
			if rest, shortened := strings.CutPrefix(s.sentence, "…"); shortened {
				s.sentence = stem + rest
			}
			if documented[s] != 0 {
				t.Errorf("docs/reasons.md:%d: %s is there twice", row.Line, s.code)
			}
			documented[s] = row.Line
			if slices.Contains(row.Cells, "") {
				t.Errorf("docs/reasons.md:%d: %s has an empty cell", row.Line, s.code)
			}
		}
	}
	inCode := reasonsInCode(t)
	if len(inCode) < 60 {
		t.Errorf("only %d reasons were found in the code", len(inCode))
	}
	for _, s := range inCode {
		if documented[s] == 0 {
			t.Errorf("docs/reasons.md has no row | `%s` | %s |", s.code, s.sentence)
		}
		delete(documented, s)
	}
	for s, line := range documented {
		t.Errorf("docs/reasons.md:%d: the code has no reason %s with this sentence: %s", line, s.code, s.sentence)
	}
}
