package version

import (
	"strings"
	"testing"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct{ major, minor, warning, err string }{
		{"1", "35", "", ""},
		{"1", "35+", "", ""},
		{"1", "34", "", "the API server is Kubernetes 1.34 (v0), and this version needs 1.35 or later"},
		{"1", "9", "", "needs 1.35 or later"},
		{"1", "36", "newer than 1.35, the latest that this version was tested with", ""},
		{"2", "0", "cannot be parsed", ""},
		{"", "", "cannot be parsed", ""},
	} {
		warning, err := Check(&apimachineryversion.Info{Major: tc.major, Minor: tc.minor, GitVersion: "v0"})
		if !strings.Contains(warning, tc.warning) || (tc.warning == "") != (warning == "") {
			t.Errorf("%s.%s: warned of %q, want %q", tc.major, tc.minor, warning, tc.warning)
		}
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s.%s: %v, want %q", tc.major, tc.minor, err, tc.err)
		}
	}
}
