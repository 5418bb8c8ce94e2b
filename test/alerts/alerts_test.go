// Package alerts tests the alerts that ship: with promtool, and against the metrics that the binaries register and the
// runbooks.
package alerts

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/hack/metricsdoc/catalog"
	"poolpriority.dev/scheduler/test/must"
)

const (
	root      = "../.."
	rulesFile = root + "/manifests/components/alerts/rules.yaml"
	runbooks  = root + "/docs/runbooks.md"
	dashboard = root + "/manifests/components/dashboard/pool-priority.json"
)

var bin = flag.String("bin", root+"/bin", "directory with tools/promtool, which make prometheus unpacks")

// groups is the spec of a PrometheusRule, which has the format of Prometheus' files of rules.
type groups struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// shipped returns the rules of the alerts component. All of them are alerts.
func shipped(t *testing.T) groups {
	t.Helper()
	var object struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       groups         `json:"spec"`
	}
	must.NoError(t, yaml.UnmarshalStrict(must.ReadFile(t, rulesFile), &object))
	if len(object.Spec.Groups) != 1 || len(object.Spec.Groups[0].Rules) < 12 {
		t.Fatalf("groups %+v", object.Spec.Groups)
	}
	return object.Spec
}

// promtool writes the files to a new directory and runs promtool there. It returns promtool's output.
func promtool(t *testing.T, files map[string][]byte, args ...string) (string, error) {
	t.Helper()
	tool := must.Get(filepath.Abs(filepath.Join(*bin, "tools", "promtool")))(t)
	if _, err := os.Stat(tool); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: make prometheus unpacks it", err)
		}
		t.Skipf("the alerts are not tested: %v; make prometheus unpacks it, where Debian's package can be had", err)
	}
	dir := t.TempDir()
	for name, data := range files {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	cmd := exec.Command(tool, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRules: promtool accepts the shipped rules.
func TestRules(t *testing.T) {
	if out, err := promtool(t, map[string][]byte{"rules.yaml": must.Get(yaml.Marshal(shipped(t)))(t)}, "check", "rules", "rules.yaml"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestAlerts: each alert fires when it should, and not when it should not.
func TestAlerts(t *testing.T) {
	all := shipped(t)
	tests := must.ReadFile(t, "testdata/alerts.yaml")
	var cases struct {
		Tests []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert string `json:"alertname"`
				Want  []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	must.NoError(t, yaml.Unmarshal(tests, &cases))
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range cases.Tests {
		firing := map[string]bool{}
		for _, r := range c.Rules {
			firing[r.Alert] = firing[r.Alert] || len(r.Want) > 0
		}
		for alert, fired := range firing {
			fires[alert], quiet[alert] = fires[alert] || fired, quiet[alert] || !fired
		}
	}
	for i := range all.Groups[0].Rules {
		r := &all.Groups[0].Rules[i]
		if !fires[r.Alert] || !quiet[r.Alert] {
			t.Errorf("%s: there is a test in which it fires: %t, and one in which it is quiet throughout: %t", r.Alert, fires[r.Alert], quiet[r.Alert])
		}
		r.Annotations = map[string]string{"summary": r.Annotations["summary"]} // alerts.yaml does not repeat the others, which are long
	}
	if out, err := promtool(t, map[string][]byte{"rules.yaml": must.Get(yaml.Marshal(all))(t), "alerts.yaml": tests}, "test", "rules", "alerts.yaml"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestRunbooks: each alert has a severity, a summary, a description, and a section of the runbooks with all parts in
// order. No section is about an alert that does not exist.
func TestRunbooks(t *testing.T) {
	sections := map[string]string{}
	for _, part := range strings.Split("\n"+string(must.ReadFile(t, runbooks)), "\n## ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		sections[name] = text
	}
	for _, r := range shipped(t).Groups[0].Rules {
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s has the severity %q", r.Alert, r.Labels["severity"])
		}
		for _, name := range []string{"summary", "description"} {
			if text := r.Annotations[name]; !strings.HasSuffix(text, ".") {
				t.Errorf("%s has the %s %q", r.Alert, name, text)
			}
		}
		section, ok := sections[r.Alert]
		if !ok {
			t.Errorf("%s has no section %s", runbooks, r.Alert)
		}
		delete(sections, r.Alert)
		last := -1
		for _, part := range []string{"**What it means.**", "**What users notice.**", "**Look.**", "**Mend.**", "**Silence when.**"} {
			at := strings.Index(section, part)
			if at <= last {
				t.Errorf("the section %s has no part %s after the others", r.Alert, part)
			}
			last = at
		}
	}
	for name := range sections {
		if strings.HasPrefix(name, "PoolPriority") {
			t.Errorf("%s has a section %s, and there is no such alert", runbooks, name)
		}
	}
}

// others are metrics of Kubernetes' libraries that our rules and documents name. test/integration checks that the
// binaries have them.
var others = []string{"leader_election_master_status"}

// named finds names of metrics in a text. A name that ends with * stands for all metrics with this prefix.
var named = regexp.MustCompile(`\b(?:pool_priority|leader_election)_[a-z_]+\*?`)

// unknown returns the metrics that the text names but no binary registers.
func unknown(t *testing.T, text string) []string {
	t.Helper()
	components := must.Get(catalog.Components())(t)
	known := slices.Clone(others)
	for _, c := range components {
		for _, m := range c.Metrics {
			known = append(known, m.Name)
			if m.Type == "histogram" {
				known = append(known, m.Name+"_bucket", m.Name+"_sum", m.Name+"_count")
			}
		}
	}
	var bad []string
	for _, name := range named.FindAllString(text, -1) {
		prefix, any := strings.CutSuffix(name, "*")
		if !slices.ContainsFunc(known, func(k string) bool { return k == name || any && strings.HasPrefix(k, prefix) }) {
			bad = append(bad, name)
		}
	}
	return bad
}

// TestMetricsExist: the binaries register all metrics that rules and documents name.
func TestMetricsExist(t *testing.T) {
	files := []string{rulesFile, dashboard, root + "/README.md", "testdata/alerts.yaml"}
	for _, pattern := range []string{"/docs/*.md", "/manifests/*/*/*.yaml", "/charts/*/*.yaml", "/charts/*/templates/*"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	names := 0
	for _, file := range files {
		text := string(must.ReadFile(t, file))
		names += len(named.FindAllString(text, -1))
		for _, name := range unknown(t, text) {
			t.Errorf("%s names %s, which nothing registers", file, name)
		}
	}
	if names < 50 {
		t.Errorf("%d names were found", names)
	}
}

// TestMisspelt: unknown finds misspelt names, also in the rules' expressions.
func TestMisspelt(t *testing.T) {
	for text, want := range map[string]string{
		`increase(pool_priority_order_violation_total[10m]) > 0`:                   "pool_priority_order_violation_total",
		`sum(rate(pool_priority_hold_duration_seconds_buckets{outcome="vm"}[5m]))`: "pool_priority_hold_duration_seconds_buckets",
		`leader_election_master_state{name="pool-priority-scheduler"} < 1`:         "leader_election_master_state",
		`pool_priority_nothing_*`: "pool_priority_nothing_*",
		`pool_priority_pool_* and pool_priority_hold_duration_seconds_bucket{le="+Inf"}`: "",
	} {
		if got := strings.Join(unknown(t, text), " "); got != want {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
	for _, r := range shipped(t).Groups[0].Rules {
		name := named.FindString(r.Expr)
		if broken := strings.ReplaceAll(r.Expr, name, name[:len(name)-1]); len(unknown(t, broken)) == 0 {
			t.Errorf("%s is not found out", broken)
		}
	}
}
