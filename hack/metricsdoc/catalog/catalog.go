// Package catalog lists the metrics that our binaries register, as their collectors describe themselves.
package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/gatekeeper"
	"poolpriority.dev/scheduler/pkg/poolpriority"
	"poolpriority.dev/scheduler/pkg/returner"
)

// Metric is a metric that one of our binaries registers.
type Metric struct {
	// Name is the whole name; Type is counter, gauge or histogram.
	Name, Type string
	Help       string
	Labels     []string
}

// Component is a binary and its metrics, in the order of their names.
type Component struct {
	Name    string
	Metrics []Metric
}

// Components returns our binaries with their metrics.
func Components() ([]Component, error) {
	scheduler, err := describe(slices.Concat(poolpriority.Metrics(), gatekeeper.Metrics(), returner.Metrics()), gatekeeper.Gauges())
	if err != nil {
		return nil, err
	}
	controllers, err := describe(controller.Metrics(), (&controller.GateTaint{}).Gauges(nil))
	return []Component{{"scheduler", scheduler}, {"controller", controllers}}, err
}

// describe returns the metrics and the collector's gauges, sorted by name.
func describe(all []metrics.Registerable, gauges metrics.StableCollector) ([]Metric, error) {
	var described []Metric
	for _, m := range all {
		m.Create(nil)
		kind := ""
		switch m.(type) {
		case *metrics.Counter, *metrics.CounterVec:
			kind = "counter"
		case *metrics.GaugeVec:
			kind = "gauge"
		case *metrics.HistogramVec:
			kind = "histogram"
		default:
			return nil, fmt.Errorf("%s is a %T, of which it is not known what it is", m.FQName(), m)
		}
		found, err := read(m, kind)
		if err != nil {
			return nil, err
		}
		described = append(described, found...)
	}
	gauges.Create(nil, gauges)
	found, err := read(gauges, "gauge")
	described = append(described, found...)
	slices.SortFunc(described, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return described, err
}

// form matches the String of a prometheus.Desc, which has no other exported way to read its fields.
var form = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

func read(c prometheus.Collector, kind string) ([]Metric, error) {
	descs := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	var all []Metric
	var failed error
	for desc := range descs {
		parts := form.FindStringSubmatch(desc.String())
		if parts == nil {
			failed = fmt.Errorf("a metric describes itself in another form: %s", desc)
			continue
		}
		m := Metric{Type: kind}
		var err error
		if m.Name, err = strconv.Unquote(parts[1]); err != nil {
			failed = err
		}
		if m.Help, err = strconv.Unquote(parts[2]); err != nil {
			failed = err
		}
		if parts[3] != "" {
			m.Labels = strings.Split(parts[3], ",")
		}
		all = append(all, m)
	}
	return all, failed
}
