package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// prometheus is a process of Debian's Prometheus, which listens on loopback.
type prometheus struct {
	*env
	address string
}

// listening matches the log line with the address that Prometheus listens on.
var listening = regexp.MustCompile(`msg="Listening on" address=(127\.0\.0\.1:\d+)`)

// startPrometheus starts a Prometheus that scrapes the processes with the token and evaluates the shipped alerts.
func (e *env) startPrometheus(token string, scraped map[string]*devcluster.Component) *prometheus {
	e.Helper()
	binary := filepath.Join(*bin, "tools", "prometheus")
	if _, err := os.Stat(binary); err != nil {
		if os.Getenv("CI") != "" {
			e.Fatalf("%v: make prometheus unpacks it", err)
		}
		e.Skipf("nothing is scraped: %v; make prometheus unpacks it, where Debian's package can be had", err)
	}
	dir := e.TempDir()
	var rules struct {
		Spec map[string]any `json:"spec"`
	}
	data := must.ReadFile(e, root+"/manifests/components/alerts/rules.yaml")
	must.NoError(e, yaml.Unmarshal(data, &rules))
	var jobs []map[string]any
	for name, c := range scraped {
		jobs = append(jobs, map[string]any{
			"job_name": name, "scheme": "https", "tls_config": map[string]any{"insecure_skip_verify": true},
			"authorization":  map[string]any{"credentials_file": filepath.Join(dir, "token")},
			"static_configs": []map[string]any{{"targets": []string{c.Address}}},
		})
	}
	for name, content := range map[string]any{
		"token": token, "rules.yaml": rules.Spec,
		"prometheus.yaml": map[string]any{
			"global": map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": []string{"rules.yaml"}, "scrape_configs": jobs,
		},
	} {
		data := []byte(token)
		if name != "token" {
			var err error
			data, err = yaml.Marshal(content)
			must.NoError(e, err)
		}
		must.NoError(e, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	p, err := devcluster.StartProcess("prometheus", binary, e.Dir(), nil, "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	must.NoError(e, err)
	e.Cleanup(p.Stop)
	started := &prometheus{env: e}
	e.Eventually(30*time.Second, func() string {
		log, err := os.ReadFile(p.Log())
		if err != nil {
			return err.Error()
		}
		match := listening.FindSubmatch(log)
		if match == nil {
			return "Prometheus does not listen:\n" + suite.Tail(log, 2000)
		}
		started.address = string(match[1])
		return ""
	})
	return started
}

// get calls Prometheus' API and decodes the answer's data.
func (p *prometheus) get(path string, values url.Values, into any) error {
	response, err := http.Get("http://" + p.address + "/api/v1/" + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%w: %s", err, suite.Tail(body, 500))
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s", answer.Error)
	}
	return nil
}

// query evaluates the expression now, and returns the values of its series.
func (p *prometheus) query(expr string) ([]string, error) {
	var data struct {
		Result []struct {
			Value [2]any `json:"value"`
		} `json:"result"`
	}
	if err := p.get("query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, err
	}
	var values []string
	for _, r := range data.Result {
		values = append(values, fmt.Sprint(r.Value[1]))
	}
	return values, nil
}

// is waits until the expression has this value.
func (p *prometheus) is(expr, want string) {
	p.Helper()
	p.Eventually(20*time.Second, func() string {
		if got, err := p.query(expr); err != nil || strings.Join(got, " ") != want {
			return fmt.Sprintf("%s is %v (%v), want %s", expr, got, err, want)
		}
		return ""
	})
}

// selectors matches the selectors of our metrics in an expression.
var selectors = regexp.MustCompile(`\b(?:pool_priority|leader_election)_[a-z_]+(?:\{[^{}]*\})?`)

// TestPrometheus runs the demo's load while Debian's Prometheus scrapes the scheduler and the controller, with the
// token of a ServiceAccount that has the role for scrapers. Every metric that an alert selects exists. Prometheus can
// evaluate every alert, and no alert fires. Every query of the dashboard has series.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 1, 1, 3, 20), vms("systempool", "system", 1, 1, 2, 10))
	e.rbac = returnRBAC
	const config = root + "/manifests/examples/return.yaml"
	e.schedule(config, suite.UserTier(3), suite.SystemTier(2), suite.VirtualTier())
	controller := e.controlServing(config)
	e.waitGated(true)
	token := e.scraper("prometheus", true)
	p := e.startPrometheus(token, map[string]*devcluster.Component{"scheduler": e.scheduler, "controller": controller})
	e.Create(suite.Deployment("web", 4, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4})
	p.is(`sum(pool_priority_pool_pods{pool="user"})`, "4")
	e.Scale("web", 23)
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 12, "systempool": 8, "aci": 3})

	// The metrics agree with the cluster.
	p.is(`sum(pool_priority_pool_pods{pool="aci"})`, "3")
	p.is(`sum(pool_priority_placements_total{pool="aci",reason="Open"})`, "3")
	p.is(`sum(pool_priority_placements_total)`, "23")
	p.is(`sum(pool_priority_hold_duration_seconds_count{outcome="burst"})`, "3")
	p.is(`pool_priority_order_violations_total`, "0")
	p.is(`pool_priority_gate_open`, "1")
	p.is(`pool_priority_pool_nodes_max{pool="user"} - ignoring(condition) pool_priority_pool_nodes{pool="user",condition="ready"}`, "0")
	p.is(`pool_priority_pool_budget_pods`, "100")
	p.is(`time() - pool_priority_source_last_change_timestamp_seconds{source="cluster-autoscaler"} < bool 30`, "1")
	p.is(`pool_priority_gate_taint_missing_nodes`, "0")
	p.is(`sum(leader_election_master_status{name="pool-priority-controller"})`, "1")
	p.is(`pool_priority_build_info`, "1")
	p.is(`pool_priority_server_tested`, "1")
	p.haveSeries()
	p.draw(root + "/manifests/components/dashboard/pool-priority.json")
	p.quiet()
	e.standby(config, token)
	e.unauthorized(controller)
	e.ready(controller)
}

// scraper makes a ServiceAccount, with the role for scrapers if bound is set, and returns its token.
func (e *env) scraper(name string, bound bool) string {
	e.Helper()
	must.Do(e)(e.Client.CoreV1().ServiceAccounts(namespace).Create(e.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	if bound {
		if out, err := tool(e, "kubectl", "--kubeconfig="+e.KubeConfig(), "apply", "-f", root+"/manifests/components/monitoring/reader.yaml"); err != nil {
			e.Fatalf("%v: %s", err, out)
		}
		must.Do(e)(e.Client.RbacV1().ClusterRoleBindings().Create(e.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pool-priority-metrics-reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}},
		}, metav1.CreateOptions{}))
	}
	token := must.Get(e.ServiceAccountToken(e.ctx, namespace, name))(e)
	return token
}

// alerts returns the rules that Prometheus has loaded.
func (p *prometheus) alerts() ([]alert, error) {
	var data struct {
		Groups []struct{ Rules []alert }
	}
	if err := p.get("rules", nil, &data); err != nil {
		return nil, err
	}
	var all []alert
	for _, g := range data.Groups {
		all = append(all, g.Rules...)
	}
	return all, nil
}

type alert struct{ Name, Query, State, Health, LastError string }

// haveSeries waits until each selector of each alert has series.
func (p *prometheus) haveSeries() {
	p.Helper()
	alerts, err := p.alerts()
	if err != nil || len(alerts) < 12 {
		p.Fatalf("%d alerts, %v", len(alerts), err)
	}
	n := 0
	for _, a := range alerts {
		for _, selector := range selectors.FindAllString(a.Query, -1) {
			n++
			p.Eventually(20*time.Second, func() string {
				if got, err := p.query(selector); err != nil || len(got) == 0 {
					return fmt.Sprintf("%s: nothing has %s (%v)", a.Name, selector, err)
				}
				return ""
			})
		}
	}
	if n < len(alerts) {
		p.Errorf("%d selectors in %d alerts", n, len(alerts))
	}
}

// draw waits until each query of the dashboard has series, except for pods that are held or that a provider refused.
func (p *prometheus) draw(file string) {
	p.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must.NoError(p, json.Unmarshal(must.ReadFile(p, file), &dashboard))
	variables := strings.NewReplacer("$cluster", ".*", "$namespace", ".*", "$__range", "5m", "$__rate_interval", "1m", "$cpu_price", "0.05", "$memory_price", "0.005")
	n := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			n++
			expr := variables.Replace(target.Expr)
			p.Eventually(90*time.Second, func() string {
				if got, err := p.query(expr); err != nil || len(got) == 0 && !slices.Contains([]string{"Held pods by reason", "Refused pods by code"}, panel.Title) {
					return fmt.Sprintf("%s: %s has no series (%v)", panel.Title, expr, err)
				}
				return ""
			})
		}
	}
	if n < 15 {
		p.Errorf("%d queries", n)
	}
}

// quiet waits until every alert has been evaluated, and fails the test if one fires.
func (p *prometheus) quiet() {
	p.Helper()
	p.Eventually(20*time.Second, func() string {
		alerts, err := p.alerts()
		if err != nil {
			return err.Error()
		}
		for _, a := range alerts {
			if a.Health != "ok" {
				return fmt.Sprintf("%s is %s: %s", a.Name, a.Health, a.LastError)
			}
			if a.State == "firing" {
				p.Fatalf("%s fires", a.Name)
			}
		}
		return ""
	})
}

// standby: the metrics of a scheduler that is not the leader show that, and include no gauges of pools.
func (e *env) standby(config, token string) {
	e.Helper()
	data := must.ReadFile(e, config)
	file := must.WriteFile(e, "standby.yaml", data)
	second := must.Get(e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), file, e.rbac))(e)
	defer second.Stop()
	e.Eventually(20*time.Second, func() string {
		status, body, err := e.scrape(second, token)
		if err != nil || status != http.StatusOK || !strings.Contains(string(body), `leader_election_master_status{name="pool-priority-scheduler"} 0`) {
			return fmt.Sprintf("status %d, %v: %s", status, err, suite.Tail(body, 500))
		}
		for _, gauge := range []string{"pool_priority_pool_", "pool_priority_held_", "pool_priority_gate_open", "pool_priority_burst_refusing", "pool_priority_source_last"} {
			if strings.Contains(string(body), "\n"+gauge) {
				e.Fatalf("a standby has %s…", gauge)
			}
		}
		return ""
	})
}

// unauthorized: neither binary serves its metrics to a client without the right.
func (e *env) unauthorized(controller *devcluster.Component) {
	e.Helper()
	token := e.scraper("anybody", false)
	for _, tc := range []struct {
		name, token string
		scheduler   int
		controller  int
	}{
		{"without a token", "", http.StatusForbidden, http.StatusUnauthorized},                 // the scheduler treats this client as the user system:anonymous
		{"with a wrong one", "wrong", http.StatusUnauthorized, http.StatusInternalServerError}, // controller-runtime returns 500
		{"without the right", token, http.StatusForbidden, http.StatusForbidden},
	} {
		for c, want := range map[*devcluster.Component]int{e.scheduler: tc.scheduler, controller: tc.controller} {
			if status, body, err := e.scrape(c, tc.token); err != nil || status != want || strings.Contains(string(body), "pool_priority_") {
				e.Errorf("%s: status %d (%v), want %d: %s", tc.name, status, err, want, suite.Tail(body, 200))
			}
		}
	}
}

// ready: the controller's probes list their checks.
func (e *env) ready(controller *devcluster.Component) {
	e.Helper()
	for path, want := range map[string][]string{
		"/healthz?verbose=true": {"[+]ping ok"},
		"/readyz?verbose=true":  {"[+]caches ok", "[+]leader-election ok"},
	} {
		response := must.Get(http.Get("http://" + controller.Health + path))(e)
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			e.Errorf("%s: %s, %v: %s", path, response.Status, err, body)
		}
		for _, line := range want {
			if !strings.Contains(string(body), line) {
				e.Errorf("%s has no %q: %s", path, line, body)
			}
		}
	}
}
