// Package imports tests which packages may import which.
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

// allowed lists, for each of our packages, which of our packages it may import directly. Tests may import others.
var allowed = map[string][]string{
	"pkg/apis/config/v1":                    {"pkg/compat"},
	"pkg/apis/config/scheme":                {"pkg/apis/config/v1"},
	"pkg/pool":                              {"pkg/apis/config/v1"},
	"pkg/aci":                               {},
	"pkg/compat":                            {},
	"pkg/compat/dryrun":                     {},
	"pkg/compat/gating":                     {},
	"pkg/compat/outoftree":                  {},
	"pkg/alike":                             {"pkg/aci", "pkg/compat", "pkg/pool", "pkg/refusal"},
	"pkg/version":                           {"pkg/compat"},
	"pkg/capacitybuffer":                    {},
	"pkg/lease":                             {},
	"pkg/backoff":                           {},
	"pkg/refusal":                           {},
	"pkg/breaker":                           {"pkg/aci", "pkg/alike", "pkg/backoff", "pkg/refusal"},
	"pkg/nodegroups":                        {"pkg/breaker", "pkg/denial"},
	"pkg/nodegroups/static":                 {"pkg/apis/config/v1", "pkg/nodegroups"},
	"pkg/nodegroups/clusterautoscaler":      {"pkg/apis/config/v1", "pkg/pool", "pkg/nodegroups"},
	"pkg/nodegroups/karpenter":              {"pkg/pool", "pkg/nodegroups"},
	"pkg/published":                         {"pkg/apis/config/v1", "pkg/aci", "pkg/pool", "pkg/nodegroups", "pkg/nodegroups/clusterautoscaler", "pkg/nodegroups/karpenter", "pkg/gate", "pkg/breaker", "pkg/returnplan"},
	"pkg/gate":                              {"pkg/apis/config/v1", "pkg/aci", "pkg/alike", "pkg/pool", "pkg/nodegroups", "pkg/breaker", "pkg/refusal"},
	"pkg/scalein":                           {"pkg/pool"},
	"pkg/rollout":                           {"pkg/pool", "pkg/refusal"},
	"pkg/returnplan":                        {"pkg/backoff"},
	"pkg/returner":                          {"pkg/apis/config/v1", "pkg/capacitybuffer", "pkg/nodegroups", "pkg/pool", "pkg/refusal", "pkg/returnplan", "pkg/rollout"},
	"pkg/gatekeeper/usage":                  {"pkg/aci", "pkg/compat", "pkg/pool", "pkg/refusal"},
	"pkg/gatekeeper/sources":                {"pkg/apis/config/v1", "pkg/pool", "pkg/nodegroups", "pkg/nodegroups/static", "pkg/nodegroups/clusterautoscaler", "pkg/nodegroups/karpenter", "pkg/gate", "pkg/published"},
	"pkg/gatekeeper/providers":              {"pkg/aci", "pkg/breaker", "pkg/pool", "pkg/nodegroups", "pkg/published", "pkg/refusal", "pkg/returnplan"},
	"pkg/gatekeeper/waiting":                {"pkg/alike", "pkg/nodegroups", "pkg/gate", "pkg/published"},
	"pkg/gatekeeper/held":                   {"pkg/aci", "pkg/alike", "pkg/breaker", "pkg/pool", "pkg/nodegroups", "pkg/gate", "pkg/gatekeeper/usage", "pkg/gatekeeper/waiting", "pkg/published", "pkg/refusal", "pkg/rollout"},
	"pkg/gatekeeper/publishing":             {"pkg/apis/config/v1", "pkg/aci", "pkg/breaker", "pkg/pool", "pkg/nodegroups", "pkg/gate", "pkg/gatekeeper/held", "pkg/gatekeeper/providers", "pkg/gatekeeper/sources", "pkg/gatekeeper/usage", "pkg/published"},
	"pkg/gatekeeper":                        {"pkg/apis/config/v1", "pkg/aci", "pkg/alike", "pkg/breaker", "pkg/compat", "pkg/denial", "pkg/pool", "pkg/nodegroups", "pkg/gate", "pkg/gatekeeper/held", "pkg/gatekeeper/providers", "pkg/gatekeeper/publishing", "pkg/gatekeeper/sources", "pkg/gatekeeper/usage", "pkg/gatekeeper/waiting", "pkg/published", "pkg/refusal", "pkg/returnplan"},
	"pkg/poolpriority":                      {"pkg/apis/config/v1", "pkg/aci", "pkg/alike", "pkg/compat", "pkg/compat/dryrun", "pkg/compat/gating", "pkg/denial", "pkg/pool", "pkg/nodegroups", "pkg/gate", "pkg/gatekeeper", "pkg/gatekeeper/held", "pkg/refusal", "pkg/returner", "pkg/returnplan", "pkg/rollout", "pkg/scalein", "pkg/lease", "pkg/version"},
	"pkg/poolpriority/command":              {"pkg/apis/config/v1", "pkg/apis/config/scheme", "pkg/compat/outoftree", "pkg/poolpriority", "pkg/lease", "pkg/version"},
	"pkg/controller":                        {"pkg/apis/config/v1", "pkg/backoff", "pkg/denial", "pkg/nodegroups", "pkg/pool", "pkg/refusal", "pkg/scalein"},
	"pkg/controller/cleanup":                {"pkg/apis/config/v1", "pkg/controller", "pkg/denial", "pkg/gate", "pkg/pool", "pkg/refusal", "pkg/returnplan", "pkg/scalein"},
	"pkg/controller/command":                {"pkg/apis/config/v1", "pkg/pool", "pkg/controller", "pkg/controller/cleanup", "pkg/lease", "pkg/version"},
	"test/devcluster":                       {"test/devcluster/autoscaler", "test/devcluster/virtualnode"},
	"test/devcluster/azure":                 {},
	"test/devcluster/autoscaler":            {},
	"test/devcluster/autoscaler/simcluster": {"test/devcluster/autoscaler"},
	"test/devcluster/virtualnode":           {"test/devcluster/azure"},
	"test/devcluster/referee":               {"test/devcluster"},
	"test/devcluster/demo/picture":          {},
	"test/devcluster/demo":                  {"test/devcluster", "test/devcluster/demo/picture", "test/devcluster/referee", "pkg/gate"},
	"test/devcluster/command":               {"test/devcluster", "test/devcluster/demo"},
	"pkg/denial":                            {},
	"pkg/lint":                              {"pkg/aci", "pkg/apis/config/v1", "pkg/gate", "pkg/nodegroups", "pkg/pool", "pkg/version"},
	"pkg/cli":                               {"pkg/apis/config/v1", "pkg/aci", "pkg/capacitybuffer", "pkg/denial", "pkg/pool", "pkg/nodegroups", "pkg/nodegroups/clusterautoscaler", "pkg/nodegroups/karpenter", "pkg/gate", "pkg/lint", "pkg/breaker", "pkg/refusal", "pkg/returnplan", "pkg/scalein", "pkg/published", "pkg/version"},
	"cmd/kubectl-pools":                     {"pkg/cli"},
	"cmd/scheduler":                         {"pkg/poolpriority/command"},
	"cmd/controller":                        {"pkg/controller/command"},
	"cmd/devcluster":                        {"test/devcluster/command"},
}

// limits lists what packages must not depend on, directly or through their imports.
var limits = []struct {
	why               string
	packages, mustNot []string
}{
	{
		why: "holds types or rules and is linked by tools",
		packages: []string{"pkg/apis/config/v1", "pkg/pool", "pkg/nodegroups", "pkg/nodegroups/static", "pkg/nodegroups/clusterautoscaler", "pkg/nodegroups/karpenter",
			"pkg/gate", "pkg/rollout", "pkg/returnplan", "pkg/scalein", "pkg/published", "pkg/refusal", "pkg/breaker"},
		mustNot: []string{"k8s.io/kubernetes", "k8s.io/kube-scheduler/framework", "k8s.io/client-go/informers", "k8s.io/client-go/kubernetes", "k8s.io/client-go/tools/cache"},
	},
	{
		why:      "decides without a cluster",
		packages: []string{"test/devcluster/autoscaler", "test/devcluster/autoscaler/simcluster"},
		mustNot:  []string{"k8s.io/kubernetes", "k8s.io/client-go", "k8s.io/kube-scheduler"},
	},
	{
		why:      "draws numbers",
		packages: []string{"test/devcluster/demo/picture"},
		mustNot:  []string{"k8s.io", "sigs.k8s.io"},
	},
	{
		why:      "works beside the scheduling cycle",
		packages: []string{"pkg/gatekeeper", "pkg/gatekeeper/held", "pkg/gatekeeper/providers", "pkg/gatekeeper/publishing", "pkg/gatekeeper/sources", "pkg/gatekeeper/usage", "pkg/gatekeeper/waiting"},
		mustNot:  []string{"k8s.io/kubernetes", "k8s.io/kube-scheduler/framework"},
	},
	{
		why:      "writes nodes and pods, and schedules nothing",
		packages: []string{"cmd/controller"},
		mustNot:  []string{"k8s.io/kubernetes", "k8s.io/kube-scheduler/framework"},
	},
	{
		why:      "is a plugin of kubectl's",
		packages: []string{"pkg/cli", "cmd/kubectl-pools"},
		mustNot:  []string{"k8s.io/kubernetes", "k8s.io/kube-scheduler/framework", "k8s.io/kubectl", "sigs.k8s.io/controller-runtime", "k8s.io/client-go/informers"},
	},
	{
		why:      "knows of leases and nothing of scheduling",
		packages: []string{"pkg/lease"},
		mustNot:  []string{"k8s.io/kubernetes", "k8s.io/kube-scheduler", "k8s.io/client-go/informers"},
	},
	{
		why:      "is shipped",
		packages: []string{"cmd/scheduler", "cmd/controller", "cmd/kubectl-pools"},
		mustNot:  []string{module + "test/devcluster", "go.etcd.io/etcd/server", "sigs.k8s.io/kwok", "github.com/virtual-kubelet", "github.com/yuin/goldmark", "testing", "pgregory.net/rapid"},
	},
}

// internals lists the packages of k8s.io/kubernetes that what ships imports directly, and why. They are not public:
// each new minor version may move them.
var internals = map[string]string{
	"cmd/kube-scheduler/app":                            "the command is kube-scheduler's with one more plugin",
	"cmd/kube-scheduler/app/options":                    "its options",
	"pkg/features":                                      "the name of the feature gate that is refused",
	"pkg/scheduler":                                     "the handler of failed cycles, which is wrapped",
	"pkg/scheduler/apis/config":                         "the profile as the framework takes it",
	"pkg/scheduler/apis/config/scheme":                  "decodes the file, and gives a profile its defaults",
	"pkg/scheduler/apis/config/v1":                      "converts the plugin's arguments with those of the in-tree plugins",
	"pkg/scheduler/backend/cache":                       "the returner's snapshot of the cluster",
	"pkg/scheduler/backend/queue":                       "the scheduling queue, which gates held pods",
	"pkg/scheduler/framework":                           "NodeInfo, CycleState and the profile that is wrapped",
	"pkg/scheduler/framework/plugins":                   "the in-tree plugins that the returner runs",
	"pkg/scheduler/framework/plugins/defaultpreemption": "preemption, whose order of nodes and dry runs are changed",
	"pkg/scheduler/framework/plugins/feature":           "what in-tree plugins are created with",
	"pkg/scheduler/framework/plugins/names":             "names of in-tree plugins",
	"pkg/scheduler/framework/plugins/nodevolumelimits":  "the limits of volumes, for the returner",
	"pkg/scheduler/framework/plugins/tainttoleration":   "the filter of taints, which is run with the burst pool's tolerations",
	"pkg/scheduler/framework/preemption":                "the dry run of preemption",
	"pkg/scheduler/framework/runtime":                   "the returner's framework",
	"pkg/scheduler/metrics":                             "which the framework writes",
	"pkg/scheduler/util":                                "the age of victims, as preemption compares it",
}

// TestInternals: internals is exactly what is imported.
func TestInternals(t *testing.T) {
	used := map[string]bool{}
	for name, p := range list(t) {
		if !strings.HasPrefix(name, module+"pkg/") && !strings.HasPrefix(name, module+"cmd/") {
			continue
		}
		for _, imported := range p.Imports {
			if internal, ok := strings.CutPrefix(imported, "k8s.io/kubernetes/"); ok {
				used[internal] = true
				if internals[internal] == "" {
					t.Errorf("%s imports %s, which internals does not list: is there a public way?", name, imported)
				}
			}
		}
	}
	for internal := range internals {
		if !used[internal] {
			t.Errorf("internals lists %s, which nothing imports", internal)
		}
	}
}

type goPackage struct {
	ImportPath    string
	Imports, Deps []string
}

func list(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps", "./cmd/...", "./pkg/...", "./test/devcluster/...")
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
	shipped := slices.Concat(packages[module+"cmd/scheduler"].Deps, packages[module+"cmd/controller"].Deps, packages[module+"cmd/kubectl-pools"].Deps)
	for path := range packages {
		if strings.HasPrefix(path, module+"pkg/") && !slices.Contains(shipped, path) {
			t.Errorf("%s is in pkg, which holds what ships, and no binary that ships links it", path)
		}
	}
	for _, limit := range limits {
		for _, name := range limit.packages {
			p, ok := packages[module+name]
			if !ok {
				t.Errorf("%s has limits and does not exist", name)
			}
			for _, not := range limit.mustNot {
				if i := slices.IndexFunc(p.Deps, func(dep string) bool { return dep == not || strings.HasPrefix(dep, not+"/") }); i >= 0 {
					t.Errorf("%s %s and must not depend on %s: %s", name, limit.why, not, strings.Join(chain(packages, module+name, p.Deps[i]), " → "))
				}
			}
		}
	}
}

// chain returns a shortest chain of imports from one package to another.
func chain(packages map[string]goPackage, from, to string) []string {
	reached := map[string]string{from: ""} // the importer of each package on its way
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, i := range packages[queue[0]].Imports {
			if _, ok := reached[i]; !ok {
				reached[i] = queue[0]
				queue = append(queue, i)
			}
		}
	}
	var way []string
	for p := to; p != ""; p = reached[p] {
		way = append(way, strings.TrimPrefix(p, module))
	}
	slices.Reverse(way)
	return way
}
