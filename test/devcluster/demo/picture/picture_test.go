package picture

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"poolpriority.dev/scheduler/test/must"
)

var update = flag.Bool("update", false, "write the pictures anew")

// docs is the path of the documentation's timeline and picture, without .json and .svg.
const docs = "../../../../docs/demo"

func read(t *testing.T, file string) Timeline {
	t.Helper()
	data := must.ReadFile(t, file)
	var timeline Timeline
	if err := json.Unmarshal(data, &timeline); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return timeline
}

// TestPictures draws the documentation's picture, and a run that was stopped: its gate had just opened, and two pools
// had no pods.
func TestPictures(t *testing.T) {
	for _, name := range []string{docs, "testdata/stopped"} {
		got, golden := SVG(read(t, name+".json").SameLoad()), name+".svg"
		for decoder := xml.NewDecoder(bytes.NewReader(got)); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is not XML: %v\n%s", golden, err, got)
			}
		}
		if *update {
			must.NoError(t, os.WriteFile(golden, got, 0o644))
		}
		want := must.ReadFile(t, golden)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not what the code draws; go test ./test/devcluster/demo/picture -update writes it (-want,+got):\n%s", golden, diff)
		}
	}
}

func TestSameLoad(t *testing.T) {
	timeline := read(t, docs+".json")
	same := timeline.SameLoad()
	if diff := cmp.Diff([]Run{timeline.Runs[0], timeline.Runs[2]}, same.Runs); diff != "" || len(timeline.Runs) != 3 {
		t.Errorf("of %d runs, those with the load of the first (-want,+got):\n%s", len(timeline.Runs), diff)
	}
	for i, want := range []Summary{
		{Replicas: 20, VMs: 5, MaxVMs: 5, Virtual: 5},
		{Replicas: 20, VMs: 2, MaxVMs: 5, Virtual: 14, Wrong: 16},
	} {
		if diff := cmp.Diff(want, same.Runs[i].Summary()); diff != "" {
			t.Errorf("the figures of %q (-want,+got):\n%s", same.Runs[i].Title, diff)
		}
	}
}
