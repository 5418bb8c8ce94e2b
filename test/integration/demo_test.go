package integration

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/pkg/devcluster/demo"
)

// TestDemo plays what make demo shows, with the verdicts that the README promises.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := demo.Run(context.Background(), demo.Options{Dir: t.TempDir(), BinDir: *bin, Manifests: root + "/manifests", Out: &out})
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"Verdict: right. Pods by pool: user 9, system 6, aci 5; the order was never wrong, and the virtual node opened when no pool could grow.\n",
		"Verdict: right. Pods by pool: user 16, system 0, aci 1; the order was never wrong, and the virtual node opened when no pool could grow.\n",
	} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("no %q", want)
		}
	}
	t.Logf("the demo said:\n%s", &out)
}
