package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/devcluster/demo"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
	"poolpriority.dev/scheduler/test/must"
)

// TestDemo runs the experiments of make demo, and checks their verdicts.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	pictures := t.TempDir()
	err := demo.Run(context.Background(), demo.Options{Dir: t.TempDir(), BinDir: *bin, Manifests: root + "/manifests", Pictures: pictures, Out: &out})
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
	if !t.Failed() {
		checkTimeline(t, pictures, out.String())
	}
}

// checkTimeline checks that the written files agree with the output. It compares the picture, the figures of the runs
// with our scheduler, and how the run without our scheduler differs.
func checkTimeline(t *testing.T, dir, said string) {
	data := must.ReadFile(t, filepath.Join(dir, demo.TimelineFile))
	var timeline picture.Timeline
	must.NoError(t, json.Unmarshal(data, &timeline))
	if len(timeline.Runs) != 3 || timeline.Runs[0].Load != timeline.Runs[2].Load {
		t.Fatalf("%s has not the three runs", demo.TimelineFile)
	}
	want := picture.SVG(timeline.SameLoad())
	if got, err := os.ReadFile(filepath.Join(dir, demo.PictureFile)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not the picture of %s (%v)", demo.PictureFile, demo.TimelineFile, err)
	}
	for i, want := range []struct {
		pods    []int
		summary picture.Summary
	}{
		{[]int{9, 6, 5}, picture.Summary{Replicas: 20, VMs: 5, MaxVMs: 5, Virtual: 5}},
		{[]int{16, 0, 1}, picture.Summary{Replicas: 17, VMs: 3, MaxVMs: 4, Virtual: 1}},
	} {
		run := timeline.Runs[i]
		if got := run.Steps[len(run.Steps)-1].Pods; !slices.Equal(got, want.pods) || run.Summary() != want.summary {
			t.Errorf("run %d has pods %v and %+v, not %v and %+v", i, got, run.Summary(), want.pods, want.summary)
		}
	}
	// Without our scheduler the pods always fit on the virtual node, so the autoscaler adds no VM for them. The two VMs
	// have capacity for 6 pods.
	without := timeline.Runs[2].Summary()
	if without.VMs != 2 || without.Virtual < 14 || without.Wrong < without.Virtual {
		t.Errorf("without us: %+v", without)
	}
	difference := fmt.Sprintf("Difference: without us 2 of 5 VMs were used and %d of 20 pods are on the virtual node; with us 5 VMs and 5 pods.\n"+
		"Pods that were placed while a better pool had room or could grow: without us %d, with us 0.\n", without.Virtual, without.Wrong)
	if !strings.Contains(said, difference) {
		t.Errorf("no %q", difference)
	}
}
