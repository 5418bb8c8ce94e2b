package gate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestReasons: codes are fit for metrics and differ, and of two sentences none is in the other, so that they can be told apart in a pod's
// condition.
func TestReasons(t *testing.T) {
	code := regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
	reasons := Reasons()
	for i, a := range reasons {
		if !code.MatchString(a.Code) || a.Detail != "" || !strings.HasPrefix(a.Sentence, "node(s) ") {
			t.Errorf("%+v", a)
		}
		for k, b := range reasons {
			if i != k && (a.Code == b.Code || strings.Contains(a.Sentence, b.Sentence)) {
				t.Errorf("%+v and %+v cannot be told apart", a, b)
			}
		}
	}
}

// TestAllReasonsAreListed: every sentence about nodes in this package's code is one of Reasons.
func TestAllReasonsAreListed(t *testing.T) {
	known := map[string]bool{sentenceCannot: true}
	for _, r := range Reasons() {
		known[r.Sentence] = true
	}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files, found := token.NewFileSet(), 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil || !strings.HasPrefix(text, "node(s) ") {
				return true
			}
			found++
			if !known[text] {
				t.Errorf("%s: %q is not among Reasons", files.Position(lit.Pos()), text)
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("found %d sentences only", found)
	}
}
