// Command metricsdoc writes docs/metrics.md, from the metrics that the binaries register.
package main

import (
	_ "embed"
	"fmt"
	"os"
	"strings"

	"poolpriority.dev/scheduler/hack/metricsdoc/catalog"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

//go:embed head.md
var head string

func main() {
	components, err := catalog.Components()
	if err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
	var b strings.Builder
	b.WriteString(head + "\n")
	for _, c := range components {
		fmt.Fprintf(&b, "## The %s's\n\n| metric | type | labels | |\n|---|---|---|---|\n", c.Name)
		for _, m := range c.Metrics {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, code(m.Labels), escape(strings.TrimPrefix(m.Help, "[ALPHA] ")))
		}
		b.WriteString("\n")
	}
	b.WriteString("## Labels\n\n| label | values |\n|---|---|\n")
	for _, l := range labels() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, l.values)
	}
	fmt.Print(b.String())
}

type label struct{ name, values string }

// labels returns the labels and their possible values. All are bounded: no value is the name of a pod or a node.
func labels() []label {
	states := make([]string, len(nodegroups.States))
	for i, state := range nodegroups.States {
		states[i] = string(state)
	}
	return []label{
		{"pool", "the name of a pool in the configuration, or `none`"},
		{"state", code(states)},
		{"reason` of `pool_state_info", "the code of a reason, as `pool-priority-status` has it"},
		{"reason` of `held_pods` and, where `decision` is `closed`, of `gate_decisions_total", "the code of a reason why [a pod waits](reasons.md#a-pod-waits-and-the-gate-may-open-by-itself)"},
		{"reason` of `placements_total` and, where `decision` is `open`, of `gate_decisions_total", code(codes(gate.Reasons(gate.Kind.Opens))) + ", `none`"},
		{"source", "`cluster-autoscaler`, its status; `nodepool/NAME`, a NodePool that the configuration names; `override`, the ConfigMap pool-priority-override (`source_errors_total` only)"},

		{"code", "one that the scheduler knows of the provider's, or `other`"},
	}
}

func codes(reasons []gate.Entry) []string {
	names := make([]string, len(reasons))
	for i := range reasons {
		names[i] = reasons[i].Code
	}
	return names
}

// code formats the words as code in Markdown.
func code(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "`" + strings.Join(words, "`, `") + "`"
}

// escape returns the text for a cell of a Markdown table.
func escape(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
