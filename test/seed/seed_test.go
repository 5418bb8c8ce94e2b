package seed

import (
	"strings"
	"testing"
)

// TestNew: the numbers are the same in each run without SEED, and follow SEED.
func TestNew(t *testing.T) {
	t.Setenv("SEED", "")
	first, second := New(t, 7).Uint64(), New(t, 7).Uint64()
	if first != second {
		t.Errorf("two tests with the same seed draw %d and %d", first, second)
	}
	t.Setenv("SEED", "18446744073709551615")
	if got := Of(t, 7); got != 1<<64-1 {
		t.Errorf("the seed is %d, not SEED's", got)
	}
}

// TestCommand: the command names the package, the test without its subtest, and the seed.
func TestCommand(t *testing.T) {
	if got := command("TestA/b_c", 9); !strings.HasPrefix(got, "repeat it with: SEED=9 go test -count=1 ./test/seed -run '^TestA$'") {
		t.Error(got)
	}
}
