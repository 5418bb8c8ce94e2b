package command

import (
	"errors"
	"strings"
	"testing"
)

// TestLoggingFormat: the controller logs JSON where it is asked to, as the scheduler does, and refuses a format that
// there is not.
func TestLoggingFormat(t *testing.T) {
	for _, tc := range []struct {
		format string
		want   func(error) bool
	}{
		{"xml", func(err error) bool { return err != nil && strings.Contains(err.Error(), "Unsupported log format") }},
		{"json", func(err error) bool { return errors.Is(err, errNoConfig) }}, // that is what it looks at next
	} {
		command := New()
		command.SetArgs([]string{"--logging-format=" + tc.format})
		if err := command.Execute(); !tc.want(err) {
			t.Errorf("%s: %v", tc.format, err)
		}
	}
}
