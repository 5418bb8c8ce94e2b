// Package monitoring reads the shipped ServiceMonitors and the PrometheusRule with the Prometheus operator's own types,
// because an API server with the operator's CRDs drops unknown fields.
package monitoring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

const components = "../../manifests/components"

func read(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(components, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestServiceMonitors(t *testing.T) {
	for _, group := range []string{"monitoring", "monitoring-azure"} {
		m := &monitoringv1.ServiceMonitor{}
		read(t, group+"/servicemonitor.yaml", m)
		if m.Kind != monitoringv1.ServiceMonitorsKind || len(m.Spec.Endpoints) != 1 || len(m.Spec.Selector.MatchExpressions) != 1 {
			t.Errorf("%s: %+v", group, m)
		}
		want := "monitoring.coreos.com/v1" // Azure's group has the prefix az
		if azure := strings.HasSuffix(group, "azure"); m.APIVersion != want && !azure || azure && m.APIVersion != "az"+want {
			t.Errorf("%s is of %s", group, m.APIVersion)
		}
	}
}

func TestRules(t *testing.T) {
	r := &monitoringv1.PrometheusRule{}
	read(t, "alerts/rules.yaml", r)
	if r.Kind != monitoringv1.PrometheusRuleKind || len(r.Spec.Groups) != 1 || len(r.Spec.Groups[0].Rules) == 0 {
		t.Errorf("%+v", r)
	}
}
