package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

// screen is what a command prints to that goes on.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// watching is a command that goes on.
type watching struct {
	*testing.T
	clock *testingclock.FakeClock
	out   *screen
	stop  func() int
}

func (s *server) watch(terminal bool, args ...string) *watching {
	w := &watching{T: s.T, clock: testingclock.NewFakeClock(date), out: &screen{}}
	c := s.command()
	c.clock, c.Out = w.clock, w.out
	c.isTerminal = func(io.Writer) bool { return terminal }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() { ended <- c.options.run(ctx, append(args, "-w")) }()
	w.stop = func() int {
		cancel()
		select {
		case code := <-ended:
			return code
		case <-time.After(10 * time.Second):
			s.Fatal("it does not end")
			return 0
		}
	}
	s.Cleanup(cancel)
	return w
}

// eventually lets time pass until so often is printed what is wanted.
func (w *watching) eventually(times int, want string) {
	w.Helper()
	for deadline := time.Now().Add(10 * time.Second); strings.Count(w.out.String(), want) < times; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("not %d times %q in %q", times, want, w.out)
		}
		if w.clock.HasWaiters() {
			w.clock.Step(100 * time.Millisecond)
		}
	}
}

// watched waits until so many watch.
func (s *server) watched(n int) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got := len(s.watches)
		s.mu.Unlock()
		if got >= n {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%d watch, want %d", got, n)
		}
	}
}

// TestWatchPiped: a new table for each change, and none for what is as it was.
func TestWatchPiped(t *testing.T) {
	s := newServer(t, growing(t).published(5*time.Second))
	w := s.watch(false)
	w.eventually(1, "1  system  Growing")
	s.watched(1)
	s.put(growing(t).published(0)) // a heartbeat
	s.put(full(t).published(0))
	w.eventually(1, "1  system  Full")
	if got := w.out.String(); strings.Count(got, "POOL") != 2 || strings.Contains(got, "\x1b") {
		t.Errorf("%s", got)
	}
	if code := w.stop(); code != exitDone {
		t.Errorf("exit status %d", code)
	}
}

// TestWatchOnATerminal: the picture is drawn over, at most once a second.
func TestWatchOnATerminal(t *testing.T) {
	s := newServer(t, growing(t).published(5*time.Second))
	w := s.watch(true, "--color=never")
	const home = "\x1b[H"
	w.eventually(1, home)
	s.watched(1)
	s.put(full(t).published(0))
	w.eventually(1, "1  system  Full")
	got := w.out.String()
	if drawn, passed := strings.Count(got, home), w.clock.Since(date); drawn > int(passed/redrawInterval)+1 {
		t.Errorf("drawn %d times in %v", drawn, passed)
	}
	if !strings.HasSuffix(got, "\x1b[J") || !strings.Contains(got, "\x1b[K\n") {
		t.Errorf("%q", got)
	}
	before := strings.Count(got, home)
	w.eventually(before+1, home) // times go on
	if code := w.stop(); code != exitDone {
		t.Errorf("exit status %d", code)
	}
}

// TestWatchPod: a pod that is bound is told anew.
func TestWatchPod(t *testing.T) {
	s := newServer(t, growing(t).published(5*time.Second), pod(held, 42*time.Second, told(41*time.Second, sentenceOf(t, "PoolGrowing"))))
	w := s.watch(false, "explain", held)
	w.eventually(1, "has waited 41s for pool system")
	s.watched(2)
	s.put(pod(held, 42*time.Second, on(0, systemNode, "system", "1000")))
	w.eventually(1, "runs in pool system")
	w.stop()

	w = s.watch(false, "pods")
	w.eventually(1, "system  1000")
	s.watched(3)
	s.put(pod("web-7d4b9-second", 42*time.Second, on(0, systemNode, "system", "1000")))
	w.eventually(1, "web-7d4b9-second")
	w.stop()
}

// TestWatchWithoutRight: what may not be watched is read every now and then.
func TestWatchWithoutRight(t *testing.T) {
	s := newServer(t, growing(t).published(5*time.Second))
	s.forbid("watch ")
	w := s.watch(false)
	w.eventually(1, "1  system  Growing")
	s.put(full(t).published(0))
	w.eventually(1, "1  system  Full")
	w.stop()
}
