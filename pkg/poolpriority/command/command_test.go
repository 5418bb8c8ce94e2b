package command

import (
	"bytes"
	"strings"
	"testing"
)

// TestVersion: --version prints ours and ends.
func TestVersion(t *testing.T) {
	out := &bytes.Buffer{}
	command := New()
	command.SetOut(out)
	command.SetArgs([]string{"--version"})
	if err := command.Execute(); err != nil || !strings.HasPrefix(out.String(), "pool-priority-scheduler version ") {
		t.Errorf("printed %q, %v", out, err)
	}
}
