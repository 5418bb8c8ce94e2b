package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// playground is a running process of devcluster up.
type playground struct {
	suite.Suite
	dir  string
	cmd  *exec.Cmd
	done chan error
	out  lockedBuffer // of both streams
}

// up runs devcluster up with the arguments in the root of the repository, and returns when it is ready.
func up(t *testing.T, args ...string) *playground {
	p := &playground{Suite: suite.New(t.Context(), t, nil), dir: t.TempDir(), done: make(chan error, 1)}
	p.cmd = p.devcluster(append([]string{"up"}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in the test's terminal ends the test only
	must.NoError(t, p.cmd.Start())
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("devcluster up said:\n%s", p.out.String())
		}
	})
	p.Eventually(time.Minute, func() string {
		if said := p.out.String(); !strings.Contains(said, "stops everything") {
			return "it is not ready:\n" + said
		}
		return ""
	})
	return p
}

func (p *playground) devcluster(args ...string) *exec.Cmd {
	binaries := must.Get(filepath.Abs(*bin))(p)
	cmd := exec.Command(filepath.Join(binaries, "devcluster"), append([]string{"--dir=" + p.dir, "--bin=" + binaries}, args...)...)
	cmd.Dir = root
	return cmd
}

// children returns the ids of the processes that devcluster up has started, by name.
func (p *playground) children() map[string]int {
	p.Helper()
	var state struct{ Children []int }
	data, err := os.ReadFile(filepath.Join(p.dir, "devcluster.json"))
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	must.NoError(p, err)
	names := map[string]int{}
	for _, pid := range state.Children {
		path := must.Get(os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)))(p)
		names[filepath.Base(path)] = pid
	}
	return names
}

// ends waits until devcluster up and its children have ended, and checks the exit status.
func (p *playground) ends(children map[string]int, status int) {
	p.Helper()
	select {
	case err := <-p.done:
		var exit *exec.ExitError
		if got := p.cmd.ProcessState.ExitCode(); got != status || err != nil && !errors.As(err, &exit) {
			p.Errorf("it ended with status %d (%v), not %d", got, err, status)
		}
	case <-time.After(time.Minute):
		p.Fatal("it does not end")
	}
	for name, pid := range children {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			p.Errorf("%s still runs", name)
		}
	}
	if _, err := os.Stat(filepath.Join(p.dir, "devcluster.json")); !errors.Is(err, os.ErrNotExist) {
		p.Errorf("the file that says what runs is still there: %v", err)
	}
}

var invitation = regexp.MustCompile(`(?m)^  (\S.*)$`)

var nineSixFive = regexp.MustCompile(`systempool +2 +6\nuserpool +3 +9\nvirtual-node-aci-linux +1 +5\n\(pending\) +0\n`)

// filled returns an error text if the example's 20 pods are not placed as README.md says.
func (p *playground) filled() string {
	if out, err := p.devcluster("pools").CombinedOutput(); err != nil || !nineSixFive.Match(out) {
		return fmt.Sprintf("%s\n(%v), not 9, 6 and 5 pods", out, err)
	}
	return ""
}

// TestUp: the commands that devcluster up prints work in order, and devcluster down ends all processes that it started.
func TestUp(t *testing.T) {
	t.Parallel()
	p := up(t)
	children := p.children()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kwok", devcluster.SchedulerName, devcluster.ControllerName} {
		if children[name] == 0 {
			t.Errorf("%s does not run: %v", name, children)
		}
	}
	var script []string
	for _, line := range invitation.FindAllStringSubmatch(p.out.String(), -1) {
		if words := strings.Fields(line[1]); filepath.Base(words[0]) == "kubectl-pools" {
			if _, err := os.Stat(words[0]); errors.Is(err, os.ErrNotExist) {
				t.Logf("%s is not built", words[0])
				continue
			}
		}
		script = append(script, line[1])
	}
	if len(script) < 3 {
		t.Fatalf("it printed nothing to try: %s", p.out.String())
	}
	shell := exec.Command("sh", "-ec", strings.Join(script, "\n"))
	shell.Dir = root
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", script, err, out)
	}
	p.Eventually(time.Minute, p.filled)
	if out, err := p.devcluster("down").CombinedOutput(); err != nil || string(out) != "Stopped.\n" {
		t.Errorf("devcluster down: %v: %s", err, out)
	}
	p.ends(children, 0)
}

// TestUpIsReported: if a process is killed, devcluster up names it and ends the others. Ctrl-C ends all processes, too,
// here without a scheduler.
func TestUpIsReported(t *testing.T) {
	t.Parallel()
	p := up(t)
	children := p.children()
	must.NoError(t, syscall.Kill(children[devcluster.SchedulerName], syscall.SIGKILL))
	p.ends(children, 1)
	if want := "devcluster: pool-priority-scheduler ended (signal: killed); the end of " + p.dir; !strings.Contains(p.out.String(), want) {
		t.Errorf("no %q", want)
	}

	p = up(t, "--scheduler=false")
	children = p.children()
	if children["etcd"] == 0 || children[devcluster.SchedulerName] != 0 || children[devcluster.ControllerName] != 0 {
		t.Errorf("without a scheduler there run %v", children)
	}
	if !strings.Contains(p.out.String(), "without a scheduler") {
		t.Error("it does not say that there is no scheduler")
	}
	must.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.ends(children, 0)
}
