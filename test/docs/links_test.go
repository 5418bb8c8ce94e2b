// Package docs tests that the documentation agrees with the repository: links, examples, annotations, events, reasons
// and words.
package docs

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

const root = "../.."

func pages(t *testing.T) []*markdown.Page {
	t.Helper()
	all := must.Get(markdown.Pages(root))(t)
	return all
}

// TestLinks: the target of each link into the repository exists, and has the heading that the link names.
func TestLinks(t *testing.T) {
	all := pages(t)
	for _, path := range []string{"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} {
		all = append(all, must.Get(markdown.Read(root, path))(t))
	}
	found := 0
	for _, page := range all {
		for _, link := range page.Links {
			if complaint := broken(all, page, link.Target); complaint != "" {
				t.Errorf("%s:%d: %s", page.Path, link.Line, complaint)
			}
			found++
		}
	}
	if found < 50 {
		t.Errorf("only %d links were found", found)
	}
}

// broken returns what is wrong with a link of the page, or "".
func broken(all []*markdown.Page, page *markdown.Page, target string) string {
	if strings.Contains(target, "://") {
		return ""
	}
	file, anchor, hasAnchor := strings.Cut(target, "#")
	to := page.Path
	if file != "" {
		to = path.Join(path.Dir(page.Path), file)
	}
	if path.IsAbs(file) || strings.HasPrefix(to, "..") {
		return target + " leads out of the tree"
	}
	if _, err := os.Stat(filepath.Join(root, to)); err != nil {
		return target + " leads nowhere: " + err.Error()
	}
	if !hasAnchor {
		return ""
	}
	i := slices.IndexFunc(all, func(p *markdown.Page) bool { return p.Path == to })
	if i < 0 {
		return target + " has an anchor, and is no page of the documentation"
	}
	if !all[i].Anchors[anchor] {
		return target + ": there is no such heading"
	}
	return ""
}

func TestBroken(t *testing.T) {
	all := pages(t)
	readme := all[slices.IndexFunc(all, func(p *markdown.Page) bool { return p.Path == "README.md" })]
	for target, want := range map[string]bool{
		"https://example.com/none": false, "docs/gate.md": false, "docs/gate.md#graces": false, "pkg/gate": false, "docs/gate.md#no-such": true,
		"docs/none.md": true, "../README.md": true, "/etc/passwd": true, "#no-such": true, "pkg/gate/gate.go#L1": true,
	} {
		if got := broken(all, readme, target); (got != "") != want {
			t.Errorf("%s: %q", target, got)
		}
	}
}

// TestIndex: docs/README.md links to each page once, and README.md links to docs/README.md.
func TestIndex(t *testing.T) {
	listed := map[string]int{}
	toIndex := false
	for _, page := range pages(t) {
		if page.Path != "docs/README.md" {
			listed[path.Base(page.Path)] += 0
		}
		for _, link := range page.Links {
			switch page.Path {
			case "docs/README.md":
				listed[link.Target]++
			case "README.md":
				toIndex = toIndex || link.Target == "docs/README.md"
			}
		}
	}
	delete(listed, "README.md")
	for target, n := range listed {
		if n != 1 && !strings.Contains(target, "/") {
			t.Errorf("docs/README.md lists %s %d times", target, n)
		}
	}
	if !toIndex {
		t.Error("README.md does not link to docs/README.md")
	}
}
