package cli

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestDisplayName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/kubectl-pools": "kubectl pools", "kubectl-pool_priority": "kubectl pool-priority", `kubectl-pools.exe`: "kubectl pools", "./pools": "pools",
	} {
		if got := displayName(program); got != want {
			t.Errorf("%s: %q, want %q", program, got, want)
		}
	}
}

// TestUsage: the usage shows the name with which the program was called.
func TestUsage(t *testing.T) {
	s := newServer(t)
	for _, name := range []string{"kubectl pools", "kubectl pool-priority"} {
		c := s.command()
		c.name = name
		if code := c.options.run(t.Context(), []string{"explain", "--help"}); code != exitDone || !strings.Contains(c.out.String(), "\n  "+name+" explain (POD | TYPE/NAME") {
			t.Errorf("%d: %s", code, c.out)
		}
	}
}

// TestColors: the output has colours on a terminal unless NO_COLOR is set, and anywhere with --color=always. The text
// is the same with and without colours.
func TestColors(t *testing.T) {
	w := growing(t)
	s := newServer(t, w.published(0), pod(held, 42*time.Second, reported(41*time.Second, sentenceOf(t, "PoolGrowing"))))
	for _, tc := range []struct {
		terminal    bool
		environment string
		args        []string
		want        bool
	}{
		{false, "", nil, false},
		{true, "", nil, true},
		{true, "NO_COLOR", nil, false},
		{true, "", []string{"--color=never"}, false},
		{false, "NO_COLOR", []string{"--color=always"}, true},
		{true, "", []string{"-o", "json"}, false},
		{true, "", []string{"explain", held}, true},
	} {
		c := s.command()
		c.isTerminal = func(io.Writer) bool { return tc.terminal }
		c.environ = func(name string) string {
			if name == tc.environment {
				return "1"
			}
			return ""
		}
		c.options.run(t.Context(), tc.args)
		if got := strings.Contains(c.out.String(), "\x1b["); got != tc.want {
			t.Errorf("%+v: %q", tc, c.out)
		}
		plain := s.command()
		plain.options.run(t.Context(), append([]string{"--color=never"}, tc.args...))
		stripped := c.out.String()
		for _, escape := range escapes {
			stripped = strings.ReplaceAll(stripped, "\x1b["+escape+"m", "")
		}
		stripped = strings.ReplaceAll(stripped, "\x1b[0m", "")
		if len(tc.args) > 0 && strings.HasPrefix(tc.args[0], "--color") {
			continue
		}
		if stripped != plain.out.String() {
			t.Errorf("%+v: without colours it is %q, want %q", tc, stripped, plain.out)
		}
	}
	c := s.command()
	c.options.run(t.Context(), []string{"--color=always"})
	if want := "\x1b[90mFull\x1b[0m     3 of 3"; !strings.Contains(c.out.String(), want) {
		t.Errorf("no %q in %q", want, c.out)
	}
}

// TestServersClock: ages are computed by the API server's clock, not by the local clock.
func TestServersClock(t *testing.T) {
	s := newServer(t, growing(t).published(5*time.Second))
	s.now = date.Add(10 * time.Minute) // ours, which stands still, is behind
	if got := s.run(); !strings.Contains(got, "! no leader for 10m: ") || !strings.Contains(got, "the longest for 10m") {
		t.Error(got)
	}
}

func TestVersion(t *testing.T) {
	s := newServer(t, growing(t).published(0))
	for args, want := range map[string]string{
		"version":                 "Client: v0.2.0 (Kubernetes v1.35.4)\n",
		"version --client":        "Client: v0.2.0 (Kubernetes v1.35.4)\n",
		"version --client -ojson": `"kind": "Version"`,
		"version -oyaml":          "scheduler: v0.2.0 (Kubernetes v1.35.4)",
	} {
		got := s.run(strings.Fields(args)...)
		said := strings.Contains(got, "\nScheduler: v0.2.0 (Kubernetes v1.35.4), pool-priority-scheduler-6c9f7d5b8-4xk2p leads\n")
		if !strings.Contains(got, want) || strings.Contains(got, "exit status") || said != (args == "version") {
			t.Errorf("%s", got)
		}
	}
}
