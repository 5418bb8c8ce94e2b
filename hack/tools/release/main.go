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

func run(args []string, stdout io.Writer) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	usage := errors.New("usage: release build FLAG ... | release check [-key cosign.pub] DIR")
	if len(args) == 0 {
		return usage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	key := flags.String("key", "", "build: a private key of cosign, which $COSIGN_PASSWORD decrypts; check: a public key")
	switch args[0] {
	case "build":
		var r release
		flags.StringVar(&r.version, "version", "", "vX.Y.Z")
		flags.StringVar(&r.registry, "registry", "", "the registry and path that the image will have")
		flags.StringVar(&r.downloads, "downloads", "", "the URL below which VERSION/FILE will be")
		flags.StringVar(&r.source, "source", "", "the URL of the source, if it has one")
		flags.StringVar(&r.revision, "revision", "", "the commit")
		seconds := flags.Int64("created", 0, "the commit's time, in seconds since 1970")
		flags.StringVar(&r.tree, "tree", ".", "the source tree")
		flags.StringVar(&r.binaries, "binaries", "", "a directory with MINOR/OS/ARCH/BINARY and plugin/OS/ARCH/kubectl-pools")
		flags.StringVar(&r.out, "out", "", "a directory that does not exist or is empty")
		succeed(flags.Parse(args[1:]))
		r.created = time.Unix(*seconds, 0).UTC()
		if *key != "" {
			r.key = readPrivateKey(*key, os.Getenv("COSIGN_PASSWORD"))
		}
		r.build(stdout)
		return nil
	case "check":
		succeed(flags.Parse(args[1:]))
		if flags.NArg() == 1 {
			check(stdout, flags.Arg(0), *key)
			return nil
		}
	}
	return usage
}

// failure is an error that ends run. Every error ends it, so functions panic with a failure instead of returning
// errors.
type failure struct{ error }

func succeed(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](value T, err error) T {
	succeed(err)
	return value
}

func require(ok bool, format string, args ...any) {
	if !ok {
		panic(failure{fmt.Errorf(format, args...)})
	}
}
