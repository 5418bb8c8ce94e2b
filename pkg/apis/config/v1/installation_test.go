package v1

import (
	"strings"
	"testing"
)

func TestInstallationOf(t *testing.T) {
	for _, tc := range []struct{ lease, want, err string }{
		{"", DefaultInstallation, ""},
		{"kube-scheduler", DefaultInstallation, ""},
		{"blue", "blue", ""},
		{"blue.team-1", "blue.team-1", ""},
		{strings.Repeat("a", 63), strings.Repeat("a", 63), ""},
		{strings.Repeat("a", 64), "", "leaderElection.resourceName: Invalid value: \"" + strings.Repeat("a", 64) + "\": the name is also the value of the gate taint: must be no more than 63 "},
		{"a/b", "", "leaderElection.resourceName: Invalid value: \"a/b\": the name is also the value of the gate taint"},
	} {
		got, err := InstallationOf(tc.lease)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
			t.Errorf("InstallationOf(%q) = %q, %v, want %q, %q", tc.lease, got, err, tc.want, tc.err)
		}
	}
}
