package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// TestDocs runs the code blocks of the documentation that are marked as runnable. It uses a cluster of devcluster up,
// and runs the blocks of README.md first.
func TestDocs(t *testing.T) {
	t.Parallel()
	pages := must.Get(markdown.Pages(root))(t)
	p := up(t)
	ran := map[string]int{}
	for _, page := range pages {
		for _, block := range page.Blocks {
			if !block.Is("sh", "runnable") {
				continue
			}
			ran[page.Path]++
			if out, err := p.run(block.Text); err != nil {
				t.Errorf("%s:%d: %v\n%s%s", page.Path, block.Line, err, block.Text, out)
			} else {
				t.Logf("%s:%d:\n%s%s", page.Path, block.Line, block.Text, out)
			}
		}
		if page.Path == "README.md" {
			p.Eventually(time.Minute, p.filled)
		}
	}
	if ran["README.md"] == 0 || len(ran) < 3 {
		t.Errorf("blocks that ran, by page: %v", ran)
	}
}

// TestPoolsInDocs: the outputs of kubectl pools in the documentation are those that TestPools expects.
func TestPoolsInDocs(t *testing.T) {
	pages := must.Get(markdown.Pages(root))(t)
	found := 0
	for _, page := range pages {
		for _, block := range page.Blocks {
			if !block.Is("text", "pools") {
				continue
			}
			found++
			want, err := os.ReadFile(filepath.Join("testdata", "pools", block.Info[len(block.Info)-1]+".txt"))
			if err != nil {
				t.Errorf("%s:%d: %v", page.Path, block.Line, err)
			} else if diff := cmp.Diff(string(want), mask(block.Text)); diff != "" {
				t.Errorf("%s:%d: (-TestPools,+here):\n%s", page.Path, block.Line, diff)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d outputs of kubectl pools were found", found)
	}
}

// run runs the script in the root of the repository, as a user would.
func (p *playground) run(script string) (string, error) {
	config, err := p.devcluster("kubeconfig").Output()
	if err != nil {
		return "", fmt.Errorf("asking for the kubeconfig: %w", err)
	}
	binaries, err := filepath.Abs(*bin)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(p.Context(), 3*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-ec", script)
	shell.Dir = root
	shell.Env = append(os.Environ(), "KUBECONFIG="+strings.TrimSpace(string(config)),
		"PATH="+strings.Join([]string{binaries, filepath.Join(binaries, "tools"), os.Getenv("PATH")}, string(os.PathListSeparator)))
	out, err := shell.CombinedOutput()
	return string(out), err
}
