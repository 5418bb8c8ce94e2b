package controller

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/test/must"
)

// registered registers the counters. Before that, they count nothing.
var registered = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics()...) })

// count returns the value of the counter with the labels.
func count(t *testing.T, c *metrics.CounterVec, labels ...string) float64 {
	t.Helper()
	registered()
	n := must.Get(testutil.GetCounterMetricValue(c.WithLabelValues(labels...)))(t)
	return n
}

// TestTaintGauge: a controller that leads counts the burst nodes without the gate taint.
func TestTaintGauge(t *testing.T) {
	burst := map[string]string{"type": "virtual-kubelet"}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(node("a", burst), node("b", burst, gateTaint), node("vm", map[string]string{"mode": "user"}), node("c", burst, soft)).Build()
	r := &GateTaint{Client: c, Pools: pools(t), Clock: clock.RealClock{}}
	elected := make(chan struct{})
	gather := func() string {
		t.Helper()
		registry := metrics.NewKubeRegistry()
		registry.CustomMustRegister(r.Gauges(elected))
		families := must.Get(registry.Gather())(t)
		var series []string
		for _, f := range families {
			for _, m := range f.Metric {
				series = append(series, fmt.Sprintf("%s{%s} %v", f.GetName(), m.Label[0].GetValue(), m.GetGauge().GetValue()))
			}
		}
		return strings.Join(series, " ")
	}
	if got := gather(); got != "" {
		t.Errorf("a standby has %s", got)
	}
	close(elected)
	if got, want := gather(), "pool_priority_gate_taint_missing_nodes{aci} 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, name := range []string{"a", "c"} {
		must.Do(t)(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}))
	}
	if got, want := gather(), "pool_priority_gate_taint_missing_nodes{aci} 0"; got != want {
		t.Errorf("when it is set: %q, want %q", got, want)
	}
	r.Off = true
	if got := gather(); got != "" {
		t.Errorf("with the taint switched off there is %s", got)
	}
}

func TestCountCostWrite(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tc := range []struct {
		name, result string
		err          error
	}{
		{"written", resultWritten, nil},
		{"somebody else was first", resultConflict, apierrors.NewConflict(pods, "p", nil)},
		{"denied", resultFailed, apierrors.NewForbidden(pods, "p", errors.New("no"))},
		{"gone", "", apierrors.NewNotFound(pods, "p")},
	} {
		before := map[string]float64{}
		for _, result := range []string{resultWritten, resultConflict, resultFailed} {
			before[result] = count(t, costWrites, result)
		}
		countCostWrite(tc.err)
		for result, n := range before {
			want := n
			if result == tc.result {
				want++
			}
			if got := count(t, costWrites, result); got != want {
				t.Errorf("%s: %s is %v, want %v", tc.name, result, got, want)
			}
		}
	}
}
