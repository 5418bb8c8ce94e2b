package picture

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the pictures anew")

// docs is where the documentation's timeline and its picture are.
const docs = "../../../../docs/demo"

// TestPictures draws each timeline of testdata, and that of the documentation.
func TestPictures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no timelines: %v", err)
	}
	for _, file := range append(files, docs+".json") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			timeline, err := Read(data)
			if err != nil {
				t.Fatal(err)
			}
			got, err := SVG(timeline.SameLoad())
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".json") + ".svg"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(want, got) {
				t.Errorf("%s is not what the code draws; go test ./test/devcluster/demo/picture -update writes it (-want,+got):\n%s", golden, cmp.Diff(string(want), string(got)))
			}
		})
	}
}
