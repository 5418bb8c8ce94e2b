package docs

import (
	"bytes"
	"path/filepath"
	"testing"

	"poolpriority.dev/scheduler/test/must"
)

// maxLines and maxWords keep the documentation short, so that it is read. A commit that raises maxWords says in its
// message why the words are needed.
const maxLines, maxWords = 100, 32000

// TestLength bounds the README's lines, and the words of all pages as wc -w counts them.
func TestLength(t *testing.T) {
	words := 0
	for _, page := range pages(t) {
		text := must.ReadFile(t, filepath.Join(root, page.Path))
		words += len(bytes.Fields(text))
		if lines := bytes.Count(text, []byte("\n")); page.Path == "README.md" && lines > maxLines {
			t.Errorf("README.md has %d lines, more than %d", lines, maxLines)
		}
	}
	if words > maxWords {
		t.Errorf("README.md and docs/*.md have %d words, more than %d", words, maxWords)
	}
	if words < maxWords/2 {
		t.Errorf("only %d words were found", words)
	}
}
