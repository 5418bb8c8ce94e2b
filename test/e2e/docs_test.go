package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/markdown"
	"poolpriority.dev/scheduler/test/must"
)

// TestKindPage runs the commands of docs/kind.md, and checks where the pods are after each. It leaves out those that
// create the cluster, the image and kubectl pools, which are there. The names of nodes and images are replaced by those
// of this cluster.
func TestKindPage(t *testing.T) {
	page, dir := must.Get(markdown.Read(root, "docs/kind.md"))(t), t.TempDir()
	charts := must.Get(filepath.Abs(root + "/charts"))(t)
	replaced := strings.NewReplacer("kind-worker", "pool-priority-e2e-worker", "registry.k8s.io/pause:3.10", image+`, command: ["/pause"]`,
		"charts/pool-priority-scheduler", charts+"/pool-priority-scheduler", "image.tag=kind", "image.tag=e2e")
	var commands []string
	for _, block := range page.Blocks {
		switch {
		case block.Is("yaml", "file"):
			must.NoError(t, os.WriteFile(filepath.Join(dir, block.Info[len(block.Info)-1]), []byte(replaced.Replace(block.Text)), 0o600))
		case block.Is("sh", "kind"):
			commands = strings.Split(strings.TrimSpace(block.Text), "\n")
		}
	}
	if len(commands) != 12 || !strings.HasPrefix(commands[0], "kind create cluster") {
		t.Fatalf("the page has the commands %q", commands)
	}
	e := start(t, devcluster.SchedulerNamespace)
	t.Cleanup(func() {
		e.kubectl("delete", "--ignore-not-found", "-f", filepath.Join(dir, "web.yaml"))
		e.logs.end()
		e.run("helm", "uninstall", "pool-priority", "--namespace", devcluster.SchedulerNamespace)
		e.kubectl("label", "node", "--all", "pool-")
		e.run("kubectl", "taint", "node", "pool-priority-e2e-worker4", "burst-")
		e.kubectl("uncordon", "pool-priority-e2e-worker3")
		e.kubectl("delete", "--ignore-not-found", "namespace", devcluster.SchedulerNamespace, "--timeout=60s")
	})
	path := must.Get(filepath.Abs(*bin))(t)
	t.Setenv("PATH", strings.Join([]string{path, filepath.Join(path, "tools"), os.Getenv("PATH")}, string(os.PathListSeparator)))
	runs := map[int][]string{7: {"", "worker", "worker2"}, 8: {"worker", "worker2", "worker3"}, 9: {"worker", "worker2", "worker3", "worker4"}, 11: {"worker", "worker2", "worker3"}}
	says := map[int]string{7: "would wait for user", 10: "Let in because"}
	for i, command := range commands {
		if i == 0 || strings.HasPrefix(command, "make ") {
			continue
		}
		command = replaced.Replace(command)
		out := e.must("sh", "-ec", "cd "+dir+"\n"+command)
		t.Logf("$ %s\n%s", command, out)
		if !strings.Contains(out, says[i]) {
			t.Errorf("no %q", says[i])
		}
		if want := runs[i]; want != nil {
			e.Eventually(30*time.Second, func() string {
				var got []string
				for _, pod := range e.Pods("web") {
					got = append(got, strings.TrimPrefix(pod.Spec.NodeName, "pool-priority-e2e-"))
				}
				if slices.Sort(got); !slices.Equal(got, want) {
					return fmt.Sprintf("after %q, the pods are on %q, want %q", command, got, want)
				}
				return ""
			})
		}
	}
}
