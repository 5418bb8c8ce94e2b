package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// profile is the begin of a KubeSchedulerConfiguration, to which the arguments of an example are appended.
const profile = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: pool-priority-scheduler
  pluginConfig:
  - name: PoolPriority
    args:
`

// TestExamples: the arguments in the documentation are accepted.
func TestExamples(t *testing.T) {
	found := 0
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			if !block.Is("yaml", "args") {
				continue
			}
			found++
			config := bytes.NewBufferString(profile)
			for line := range strings.Lines(block.Text) {
				config.WriteString("      " + line)
			}
			if _, _, err := configv1.Load(config.Bytes()); err != nil {
				t.Errorf("%s:%d: %v", page.Path, block.Line, err)
			}
		}
	}
	if found == 0 {
		t.Error("no example was found")
	}
}

// TestExcerpts: each excerpt of a file is in the file.
func TestExcerpts(t *testing.T) {
	found := 0
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			if !slices.Contains(block.Info, "excerpt") {
				continue
			}
			found++
			name := block.Info[len(block.Info)-1]
			if file, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Contains(file, []byte(block.Text)) {
				t.Errorf("%s:%d: this is not in %s (%v)", page.Path, block.Line, name, err)
			}
		}
	}
	if found == 0 {
		t.Error("no excerpt was found")
	}
}
