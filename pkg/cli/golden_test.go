package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	testingclock "k8s.io/utils/clock/testing"

	"poolpriority.dev/scheduler/pkg/version"
	"poolpriority.dev/scheduler/test/must"
)

var update = flag.Bool("update", false, "write the expected outputs in testdata anew")

// command is a run of kubectl pools against the server, with the output so far.
type command struct {
	*options
	in, out, errOut *bytes.Buffer
}

func (s *server) command() *command {
	streams, in, out, errOut := genericiooptions.NewTestIOStreams()
	o := newOptions(streams)
	o.clock, o.zone = testingclock.NewFakeClock(date), time.UTC // the local clock stands still: the time is the server's
	o.kube.APIServer = &s.url
	o.environ = func(string) string { return "" }
	o.isTerminal = func(io.Writer) bool { return false }
	return &command{o, in, out, errOut}
}

// run runs the command with the arguments. It returns the command line, the output, and the exit status if that is not
// 0.
func (s *server) run(args ...string) string { return s.runWith("", args...) }

func (s *server) runWith(input string, args ...string) string {
	c := s.command()
	c.in.WriteString(input)
	code := c.options.run(context.Background(), args)
	if host := strings.TrimPrefix(s.url, "http://"); host != "" {
		for _, b := range []*bytes.Buffer{c.out, c.errOut} {
			text := strings.ReplaceAll(strings.ReplaceAll(b.String(), host, "10.0.0.1:443"), version.String(), "v0.2.0 (Kubernetes v1.35.4)")
			b.Reset()
			b.WriteString(text)
		}
	}
	seen := strings.TrimRight("$ kubectl pools "+strings.Join(args, " "), " ") + "\n" + c.out.String() + c.errOut.String()
	if code != exitDone {
		seen += fmt.Sprintf("(exit status %d)\n", code)
	}
	return seen
}

// golden compares got with the file with the name in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		must.NoError(t, os.MkdirAll("testdata", 0o755))
		must.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := must.ReadFile(t, file)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want,+got); go test ./pkg/cli -update writes it anew:\n%s", file, diff)
	}
}
