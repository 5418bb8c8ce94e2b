// Command upstream runs Kubernetes' own integration tests of the scheduler (test/integration/scheduler of the module
// k8s.io/kubernetes) with the plugin PoolPriority in the schedulers that they make: once with pools that match no node,
// and once with one pool of all nodes. With -bench it runs Kubernetes' benchmark of the scheduler (scheduler_perf), with
// and without the plugin in turn. Both are compiled from copies of the module's files, with other imports and with the
// changes of fitted.yaml.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	var r runner
	kubernetes := flag.String("kubernetes", "", "directory of the module k8s.io/kubernetes")
	flag.StringVar(&r.tools, "tools", "../../bin/tools", "directory with etcd")
	flag.StringVar(&r.work, "work", "../../bin/upstream", "directory for copies, binaries and logs")
	packages := flag.String("packages", "", "regular expression: run only packages that match")
	tests := flag.String("run", "", "run only tests that match, as go test does")
	pools := flag.String("pools", "none,all", "what the plugin's pools match, a run each; without: a run without the plugin")
	bench := flag.Bool("bench", false, "run scheduler_perf")
	rows := flag.String("rows", "", "with -bench, a regular expression: run the workloads whose name or label matches; without: those of rows.yaml")
	flag.IntVar(&r.pairs, "pairs", mostPairs, "with -bench, how many pairs there may be")
	flag.BoolVar(&r.profile, "profile", false, "with -bench, write CPU profiles to the directory of logs")
	flag.Parse()
	r.run, r.modes = *tests, strings.Split(*pools, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var ok bool
	suite, err := r.prepare(*kubernetes)
	switch {
	case err != nil:
	case *bench:
		ok, err = r.bench(ctx, regexp.MustCompile(*rows))
	default:
		ok, err = r.all(ctx, suite, regexp.MustCompile(*packages))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1) //nolint:gocritic // stopped
	}
}

type runner struct {
	tools, work string
	modules     string // the module cache
	run         string
	modes       []string
	pairs       int
	profile     bool
}

// count has the numbers of tests and subtests by result.
type count struct{ passed, failed, skipped int }

// prepare copies the tests of the module k8s.io/kubernetes in a directory, and returns their packages.
func (r *runner) prepare(kubernetes string) ([]string, error) {
	for _, dir := range []*string{&r.tools, &r.work} {
		var err error
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, err
		}
	}
	r.modules = filepath.Dir(filepath.Dir(kubernetes)) // of k8s.io/kubernetes@version
	return copySuites(kubernetes, r.work)
}

// all compiles and runs the packages one after the other, prints the results, and reports whether all tests passed.
func (r *runner) all(ctx context.Context, packages []string, chosen *regexp.Regexp) (bool, error) {
	packages = slices.DeleteFunc(packages, func(p string) bool { return !chosen.MatchString(p) })
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\npackage")
	for _, mode := range r.modes {
		fmt.Fprintf(table, "\t%s: passed\tfailed\tskipped\ttook", mode)
	}
	fmt.Fprintln(table)
	sums, took, ok := make([]count, len(r.modes)), make([]float64, len(r.modes)), true
	for _, p := range packages {
		binary, err := r.compile(ctx, p)
		if err != nil {
			return false, err
		}
		fmt.Fprint(table, p)
		for i, mode := range r.modes {
			began := time.Now()
			c, err := r.test(ctx, p, binary, mode)
			if err != nil {
				return false, err
			}
			seconds := time.Since(began).Seconds()
			fmt.Printf("%s, pools: %s: %d passed, %d failed, %d skipped in %.0f s\n", p, mode, c.passed, c.failed, c.skipped, seconds)
			fmt.Fprintf(table, "\t%d\t%d\t%d\t%.0f s", c.passed, c.failed, c.skipped, seconds)
			took[i] += seconds
			sums[i].passed, sums[i].failed, sums[i].skipped = sums[i].passed+c.passed, sums[i].failed+c.failed, sums[i].skipped+c.skipped
			ok = ok && c.failed == 0
		}
		fmt.Fprintln(table)
		if err := os.Remove(binary); err != nil {
			return false, err
		}
	}
	fmt.Fprint(table, "all")
	for i, sum := range sums {
		fmt.Fprintf(table, "\t%d\t%d\t%d\t%.0f s", sum.passed, sum.failed, sum.skipped, took[i])
	}
	fmt.Fprintln(table)
	return ok, table.Flush()
}

// compile compiles the package's tests, and returns the path of the binary.
func (r *runner) compile(ctx context.Context, p string) (string, error) {
	binary := filepath.Join(r.work, strings.ReplaceAll(p, "/", "-")+".test")
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-p", "1", "-vet=off", "-ldflags", "-s -w", "-overlay", filepath.Join(r.work, overlayFile), "-o", binary, "./"+suites+"/"+p)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", p, err, out)
	}
	fmt.Printf("%s: compiled in %.0f s\n", p, time.Since(began).Seconds())
	return binary, nil
}

// test runs the package's tests, and prints the names of those that fail.
func (r *runner) test(ctx context.Context, p, binary, mode string) (count, error) {
	name := filepath.Join(r.work, "logs", mode, strings.ReplaceAll(p, "/", "-")+".log")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return count{}, err
	}
	log, err := os.Create(name)
	if err != nil {
		return count{}, err
	}
	defer log.Close()
	dir, err := os.MkdirTemp("", "upstream-")
	if err != nil {
		return count{}, err
	}
	defer os.RemoveAll(dir)
	cmd := r.command(ctx, "go", "tool", "test2json", "-t", binary, "-test.v=test2json", "-test.timeout=60m", "-test.run="+r.run)
	cmd.Dir, cmd.Stderr = dir, log
	cmd.Env = append(cmd.Env, "POOLS="+strings.TrimSuffix(mode, "without"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return count{}, err
	}
	if err := cmd.Start(); err != nil {
		return count{}, err
	}
	c, failed, err := read(out, log)
	for _, test := range failed {
		fmt.Printf("%s, pools: %s: FAILED %s\n", p, mode, test)
	}
	ended := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err != nil:
		return c, err
	case ended != nil && !errors.As(ended, &exit):
		return c, ended
	case ended != nil && c.failed == 0:
		return c, fmt.Errorf("the tests of %s, pools: %s, ended with %w; see %s", p, mode, ended, name)
	case c.failed > 0:
		fmt.Printf("%s, pools: %s: the log is %s\n", p, mode, name)
		return c, nil
	}
	return c, os.Remove(name) // the log of a success is not needed
}

// command returns a command that runs Kubernetes' tests.
func (r *runner) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "PATH="+r.tools+":"+os.Getenv("PATH"),
		// The API server's test code joins these with the path of a source file in the binary, to find its directory.
		"TEST_SRCDIR="+r.modules, "TEST_WORKSPACE=.")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

// read counts the tests in a stream of test2json's events, returns the names of those that failed, and copies their
// output to the log.
func read(events io.Reader, log io.Writer) (count, []string, error) {
	var c count
	var failed []string
	for decoder := json.NewDecoder(events); ; {
		var event struct{ Action, Test, Output string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return c, failed, nil
		} else if err != nil {
			return c, failed, fmt.Errorf("reading what go tool test2json prints: %w", err)
		}
		switch {
		case event.Action == "output":
			if _, err := io.Copy(log, bytes.NewBufferString(event.Output)); err != nil {
				return c, failed, err
			}
		case event.Test == "":
		case event.Action == "pass":
			c.passed++
		case event.Action == "skip":
			c.skipped++
		case event.Action == "fail":
			c.failed++
			failed = append(failed, event.Test)
		}
	}
}
