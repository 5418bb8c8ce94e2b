package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// part matches a word, or a part of an identifier such as fooBar or HTTPServer.
var part = regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+`)

// TestRetiredWords: no text uses a word that CONTRIBUTING.md retires, as a word or as a part of an identifier.
func TestRetiredWords(t *testing.T) {
	own := filepath.Join(root, "CONTRIBUTING.md")
	page := must.Get(markdown.Read(root, "CONTRIBUTING.md"))(t)
	instead := map[string]string{}
	for _, row := range page.Tables[len(page.Tables)-1].Rows {
		for word := range strings.SplitSeq(row.Cells[0], ", ") {
			instead[word] = row.Cells[1]
		}
	}
	if instead["woken"] == "" {
		t.Fatal("the page's last table is not that of the retired words")
	}
	must.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && slices.Contains([]string{".git", ".devcluster", "bin"}, entry.Name()) {
			return filepath.SkipDir
		}
		if err != nil || path == own || !slices.Contains([]string{".go", ".md", ".sh", ".txt", ".yaml"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		for i, line := range strings.Split(string(text), "\n") {
			for _, word := range part.FindAllString(line, -1) {
				if write := instead[strings.ToLower(word)]; write != "" && path != filepath.Join(root, "test/docs/words_test.go") {
					t.Errorf("%s:%d: %s is retired; write: %s", strings.TrimPrefix(path, root+"/"), i+1, word, write)
				}
			}
		}
		return err
	}))
}
