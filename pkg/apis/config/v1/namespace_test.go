package v1

import (
	"os"
	"path/filepath"
	"testing"

	"poolpriority.dev/scheduler/test/must"
)

// TestPodNamespace: the state is published in the pod's namespace, unless the arguments name another.
func TestPodNamespace(t *testing.T) {
	mounted := filepath.Join(t.TempDir(), "namespace")
	must.NoError(t, os.WriteFile(mounted, []byte("mounted\n"), 0o600))
	before := serviceAccountNamespace
	t.Cleanup(func() { serviceAccountNamespace = before })
	for _, tc := range []struct{ name, variable, file, args, want string }{
		{name: "the variable", variable: "mine", file: mounted, want: "mine/pool-priority-status"},
		{name: "the ServiceAccount's", file: mounted, want: "mounted/pool-priority-status"},
		{name: "outside of a cluster", file: "/nowhere", want: "pool-priority-system/pool-priority-status"},
		{name: "said by the arguments", variable: "mine", file: mounted, args: "statusConfigMap: a/b\n", want: "a/b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(NamespaceVariable, tc.variable)
			serviceAccountNamespace = tc.file
			args := must.Get(decodeArgs(tc.args + "pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]"))(t)
			if args.StatusConfigMap != tc.want {
				t.Errorf("published in %s, want %s", args.StatusConfigMap, tc.want)
			}
		})
	}
}
