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

	"poolpriority.dev/scheduler/test/markdown"
)

// TestDocs runs the blocks of the documentation that are marked as runnable, the README's first, on a cluster as devcluster up makes it.
func TestDocs(t *testing.T) {
	t.Parallel()
	pages, err := markdown.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
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

// run runs the script as a user would, from the top of the tree.
func (p *playground) run(script string) (string, error) {
	if _, err := os.Stat(filepath.Join(*bin, "kubectl-pools")); os.IsNotExist(err) && strings.Contains(script, "kubectl pools") {
		return "skipped: kubectl-pools is not built\n", nil
	}
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
