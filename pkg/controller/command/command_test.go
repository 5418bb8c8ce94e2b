package command

import (
	"errors"
	"strings"
	"testing"
)

// TestLoggingFormat: the controller can log JSON, as the scheduler can, and rejects an unknown format.
func TestLoggingFormat(t *testing.T) {
	for _, tc := range []struct {
		format string
		want   func(error) bool
	}{
		{"xml", func(err error) bool { return err != nil && strings.Contains(err.Error(), "Unsupported log format") }},
		{"json", func(err error) bool { return errors.Is(err, errNoConfig) }}, // from the next check
	} {
		command := New()
		command.SetArgs([]string{"--logging-format=" + tc.format})
		if err := command.Execute(); !tc.want(err) {
			t.Errorf("%s: %v", tc.format, err)
		}
	}
}
