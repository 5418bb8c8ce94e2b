package devcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end after SIGTERM.
const stopTimeout = 5 * time.Second

// Process is a child process. When this process ends for any reason, the kernel kills the child process.
type Process struct {
	name, binary string
	env, args    []string
	cmd          *exec.Cmd
	log          string
	done         chan struct{}
	err          error // valid once done is closed
}

// launcher starts all children from one thread that never ends. The kernel sends the parent-death signal when the
// thread that started the child ends, not when the parent process ends.
var launcher = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})

// StartProcess runs the binary with its output in logDir/name.log.
func StartProcess(name, binary, logDir string, env []string, args ...string) (*Process, error) {
	p := &Process{name: name, binary: binary, env: env, args: args, log: filepath.Join(logDir, name+".log")}
	if err := p.Restart(); err != nil {
		return nil, err
	}
	return p, nil
}

// Restart starts a process that has not started yet or has ended. The output is appended to the log.
func (p *Process) Restart() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	// The tests' own setting of the garbage collector must not change the memory and the speed that are measured.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOGC=") }), p.env...)
	// A child in its own process group gets no signal when Ctrl-C is typed in the terminal, so that the processes can
	// be stopped in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	launcher() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		p.err = cmd.Wait()
		close(done)
	}()
	return nil
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the path of the file with the process's output.
func (p *Process) Log() string { return p.log }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// LostLease reports whether the process has ended because it could not renew its leader's lease, for example on a busy
// machine. In a cluster, the kubelet starts it again.
func (p *Process) LostLease() bool {
	return p.ended() != nil && strings.Contains(tail(p.log, 200), "Leaderelection lost")
}

// Stop sends SIGTERM and waits until the process has ended. If the process has not ended after 5 s, Stop kills it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.Kill()
	}
}

// Kill kills the process and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// If the process has ended, ended returns an error with the end of the log.
func (p *Process) ended() error {
	select {
	case <-p.done:
		end, name := tail(p.log, 2000), filepath.Base(p.binary)
		if strings.Contains(end, portTaken) {
			return fmt.Errorf("%s ended: %w; the end of %s:\n%s", name, errPortTaken, p.log, end)
		}
		return fmt.Errorf("%s ended (%v); the end of %s:\n%s", name, p.err, p.log, end)
	default:
		return nil
	}
}

func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > n {
		data = data[len(data)-n:]
	}
	return string(data)
}
