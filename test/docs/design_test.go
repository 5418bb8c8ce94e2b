package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// TestRules: each rule of docs/design.md names at least one test, and all named tests exist. No rule is missing between
// the first and the last of a letter.
func TestRules(t *testing.T) {
	rules := rulesOf(t)
	if len(rules) < 50 {
		t.Errorf("only %d rules were found", len(rules))
	}
	last := map[string]int{}
	for _, r := range rules {
		letter, number := r.name[:1], 0
		if _, err := fmt.Sscanf(r.name[1:], "%d", &number); err != nil || number != last[letter]+1 {
			t.Errorf("%s: want the rule after %s%d", r.name, letter, last[letter])
		}
		last[letter] = number
		if r.holds == "" || len(r.tests) == 0 {
			t.Errorf("%s has no sentence or no test", r.name)
		}
		for _, name := range r.tests {
			if complaint := missing(t, name); complaint != "" {
				t.Errorf("%s: %s", r.name, complaint)
			}
		}
	}
}

func TestMissing(t *testing.T) {
	for name, want := range map[string]bool{
		"test/docs.TestRules": false, "pkg/gate.FuzzEligibility": false, "make test-upstream": false,
		"test/docs.TestNone": true, "test/none.TestRules": true, "TestRules": true, "make none": true, "": true,
	} {
		if got := missing(t, name); (got != "") != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

type rule struct {
	name, holds string
	tests       []string
}

// rulesOf returns the rows of the tables of rules.
func rulesOf(t *testing.T) []rule {
	t.Helper()
	var rules []rule
	for _, table := range must.Get(markdown.Read(root, "docs/design.md"))(t).Tables {
		if !slices.Equal(table.Header, []string{"rule", "what holds", "why", "tests"}) {
			continue
		}
		for _, row := range table.Rows {
			r := rule{name: row.Cells[0], holds: row.Cells[1]}
			if row.Cells[3] != "" {
				r.tests = strings.Split(row.Cells[3], ", ")
			}
			rules = append(rules, r)
		}
	}
	return rules
}

// missing returns what is wrong with the name of a test or of a make target, or "".
func missing(t *testing.T, name string) string {
	t.Helper()
	if target, ok := strings.CutPrefix(name, "make "); ok {
		files := must.Get(filepath.Glob(filepath.Join(root, "hack/make/*.mk")))(t)
		for _, file := range append(files, filepath.Join(root, "Makefile")) {
			if strings.Contains(string(must.ReadFile(t, file)), "\n"+target+":") {
				return ""
			}
		}
		return "the Makefile has no target " + target
	}
	dir, test, _ := strings.Cut(name, ".")
	files, _ := filepath.Glob(filepath.Join(root, dir, "*_test.go")) // the pattern is valid
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(test) + `\(`)
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && test != "" && declared.Match(data) {
			return ""
		}
	}
	return name + " does not exist"
}
