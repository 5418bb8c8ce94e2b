// Command release writes a release into a directory (release build), and verifies a release as its users would (release
// check). hack/release.sh builds the binaries and calls it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	usage := errors.New("usage: release build FLAG ... | release check [-key cosign.pub] DIR")
	if len(args) == 0 {
		return usage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	key := flags.String("key", "", "build: a private key of cosign, which $COSIGN_PASSWORD decrypts; check: a public key")
	switch args[0] {
	case "build":
		r := release{task: task{stdout: stdout}}
		flags.StringVar(&r.version, "version", "", "vX.Y.Z")
		flags.StringVar(&r.registry, "registry", "", "the registry and path that the image will have")
		flags.StringVar(&r.downloads, "downloads", "", "the URL below which VERSION/FILE will be")
		flags.StringVar(&r.source, "source", "", "the URL of the source, if it has one")
		flags.StringVar(&r.revision, "revision", "", "the commit")
		seconds := flags.Int64("created", 0, "the commit's time, in seconds since 1970")
		flags.StringVar(&r.tree, "tree", ".", "the source tree")
		flags.StringVar(&r.binaries, "binaries", "", "a directory with MINOR/OS/ARCH/BINARY and plugin/OS/ARCH/kubectl-pools")
		flags.StringVar(&r.out, "out", "", "a directory that does not exist or is empty")
		r.ok(flags.Parse(args[1:]))
		r.created = time.Unix(*seconds, 0).UTC()
		if *key != "" {
			r.key = r.readPrivateKey(*key, os.Getenv("COSIGN_PASSWORD"))
		}
		return r.build()
	case "check":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		} else if flags.NArg() == 1 {
			return check(stdout, flags.Arg(0), *key)
		}
	}
	return usage
}

// task is the writing or the check of a release. Only its first error counts; after it, nothing is printed, and what is
// done has no effect.
type task struct {
	stdout io.Writer
	err    error
}

// ok records an error, and reports whether there was none so far.
func (t *task) ok(err error) bool {
	if t.err == nil {
		t.err = err
	}
	return t.err == nil
}

// require records an error unless what it requires is so.
func (t *task) require(is bool, format string, args ...any) bool {
	if !is {
		t.ok(fmt.Errorf(format, args...))
	}
	return t.err == nil
}

// only returns the only value, and records an error if there is none or more than one.
func only[T any](t *task, what string, all []T) (one T) {
	if t.require(len(all) == 1, "there are %d %s, want 1", len(all), what) {
		one = all[0]
	}
	return one
}

// get returns the value of a call, and records its error: get(os.ReadFile(name))(t).
func get[T any](value T, err error) func(*task) T {
	return func(t *task) T {
		t.ok(err)
		return value
	}
}

func (t *task) printf(format string, args ...any) {
	if t.err == nil {
		fmt.Fprintf(t.stdout, format+"\n", args...)
	}
}
