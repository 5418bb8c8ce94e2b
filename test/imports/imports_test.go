// Package imports states who may import whom.
package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "poolpriority.dev/scheduler/"

// allowed lists, for each of our packages, which others of ours it may import directly, tests left out. Imports go
// downward only: a package stands above those it may import.
var allowed = map[string][]string{
	"pkg/apis/config/v1":             {},
	"pkg/pool":                       {"pkg/apis/config/v1"},
	"pkg/version":                    {},
	"pkg/lease":                      {},
	"pkg/capacity":                   {},
	"pkg/capacity/static":            {"pkg/capacity"},
	"pkg/capacity/clusterautoscaler": {"pkg/apis/config/v1", "pkg/capacity"},
	"pkg/capacity/karpenter":         {"pkg/capacity"},
	"pkg/status":                     {"pkg/capacity", "pkg/capacity/clusterautoscaler", "pkg/capacity/karpenter"},
	"pkg/gate":                       {"pkg/pool", "pkg/capacity"},
	"pkg/scalein":                    {"pkg/pool"},
	"pkg/rollout":                    {},
	"pkg/poolpriority":               {"pkg/apis/config/v1", "pkg/pool", "pkg/capacity", "pkg/capacity/static", "pkg/capacity/clusterautoscaler", "pkg/capacity/karpenter", "pkg/status", "pkg/gate", "pkg/rollout", "pkg/scalein", "pkg/lease"},
	"pkg/poolpriority/command":       {"pkg/apis/config/v1", "pkg/poolpriority", "pkg/lease", "pkg/version"},
	"pkg/returning":                  {},
	"pkg/controller":                 {"pkg/apis/config/v1", "pkg/pool", "pkg/scalein"},
	"pkg/controller/preflight":       {"pkg/apis/config/v1", "pkg/pool", "pkg/capacity"},
	"pkg/controller/returner":        {"pkg/apis/config/v1", "pkg/pool", "pkg/returning"},
	"pkg/controller/command":         {"pkg/apis/config/v1", "pkg/pool", "pkg/controller", "pkg/controller/preflight", "pkg/controller/returner", "pkg/version"},
	"pkg/devcluster":                 {"pkg/devcluster/virtualnode"},
	"pkg/devcluster/virtualnode":     {},
	"pkg/devcluster/referee":         {"pkg/devcluster"},
	"pkg/devcluster/demo":            {"pkg/apis/config/v1", "pkg/devcluster", "pkg/devcluster/referee", "pkg/capacity", "pkg/gate"},
	"pkg/devcluster/command":         {"pkg/devcluster", "pkg/devcluster/demo"},
	"cmd/scheduler":                  {"pkg/poolpriority/command"},
	"cmd/controller":                 {"pkg/controller/command"},
	"cmd/devcluster":                 {"pkg/devcluster/command"},
}

// pure lists the packages that hold rules, with what they must not depend on in any way.
var pure = []string{"pkg/pool", "pkg/scalein", "pkg/rollout", "pkg/returning", "pkg/capacity", "pkg/capacity/static", "pkg/capacity/clusterautoscaler", "pkg/gate"}
var impure = []string{"k8s.io/client-go/informers", "k8s.io/client-go/kubernetes", "k8s.io/kubernetes/pkg/scheduler/framework", "k8s.io/kube-scheduler/framework"}

// shipped lists the commands that are deployed, and what must never be in them.
var shipped = []string{"cmd/scheduler", "cmd/controller"}
var notShipped = []string{module + "pkg/devcluster", "go.etcd.io/etcd/server", "sigs.k8s.io/kwok", "github.com/virtual-kubelet", "testing", "pgregory.net/rapid"}

type goPackage struct {
	ImportPath    string
	Imports, Deps []string
}

func list(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps", "./cmd/...", "./pkg/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := map[string]goPackage{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

func TestImports(t *testing.T) {
	packages := list(t)
	for path, p := range packages {
		name, ours := strings.CutPrefix(path, module)
		if !ours {
			continue
		}
		may, known := allowed[name]
		if !known {
			t.Errorf("%s is not in the table of allowed imports", name)
		}
		for _, i := range p.Imports {
			if imported, ours := strings.CutPrefix(i, module); ours && !slices.Contains(may, imported) {
				t.Errorf("%s must not import %s", name, imported)
			}
		}
	}
	for name := range allowed {
		if _, ok := packages[module+name]; !ok {
			t.Errorf("%s is in the table of allowed imports and does not exist", name)
		}
	}
	// The configuration's types are registered with the scheduler, whose packages bring the framework along; what counts
	// is what the pure packages import themselves, and one another.
	for _, name := range pure {
		for _, i := range packages[module+name].Imports {
			for _, bad := range impure {
				if i == bad || strings.HasPrefix(i, bad+"/") {
					t.Errorf("%s is pure and must not import %s", name, i)
				}
			}
		}
	}
	for _, name := range shipped {
		for _, dep := range packages[module+name].Deps {
			for _, bad := range notShipped {
				if dep == bad || strings.HasPrefix(dep, bad+"/") {
					t.Errorf("%s is shipped and depends on %s", name, dep)
				}
			}
		}
	}
}
