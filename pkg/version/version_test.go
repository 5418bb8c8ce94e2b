package version

import (
	"fmt"
	"strings"
	"testing"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
)

func TestCheck(t *testing.T) {
	minor := func(n int) string { return fmt.Sprint(built + n) }
	for _, tc := range []struct{ major, minor, warning, err string }{
		{"1", minor(0), "", ""},
		{"1", minor(0) + "+", "", ""},
		{"1", minor(1), "", ""},
		{"1", minor(2), "newer than 1." + minor(1) + ", the latest that this build was tested with: install a newer build", ""},
		{"1", minor(-1), "", fmt.Sprintf("the API server is Kubernetes 1.%s (v0), and this build needs 1.%s or later: ", minor(-1), minor(0))},
		{"1", "34", "", "upgrade the cluster"},
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
