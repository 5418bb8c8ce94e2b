// Package seed gives tests their random numbers. The same test draws the same numbers in each run, unless the
// environment variable SEED names another seed for all tests.
package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Of returns the seed of a test: SEED if it is set, otherwise fixed. If the test fails with SEED, the command that
// repeats it is logged.
func Of(t testing.TB, fixed uint64) uint64 {
	t.Helper()
	text := os.Getenv("SEED")
	if text == "" {
		return fixed
	}
	chosen, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("the environment variable SEED is %q: set it to a number from 0 to 2^64-1, or unset it", text)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(command(t.Name(), chosen))
		}
	})
	return chosen
}

// New returns the random numbers of a test that needs no more than one stream of them. Of says with which seed.
func New(t testing.TB, fixed uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t, fixed), 0))
}

// command returns the command that repeats a test with a seed.
func command(test string, seed uint64) string {
	top, _, _ := strings.Cut(test, "/")
	dir, _ := os.Getwd() // the package's
	for root := dir; root != filepath.Dir(root); root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			dir = "." + strings.TrimPrefix(dir, root)
			break
		}
	}
	var args []string
	for _, arg := range os.Args[1:] {
		if !strings.HasPrefix(arg, "-test.") { // a flag of the test's own, or its value
			args = append(args, arg)
		}
	}
	return strings.TrimSpace(fmt.Sprintf("repeat it with: SEED=%d go test -count=1 %s -run '^%s$' %s", seed, dir, top, strings.Join(args, " ")))
}
