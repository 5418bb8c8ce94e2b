package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"poolpriority.dev/scheduler/pkg/controller/preflight"
)

func newPreflight(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "preflight",
		Short: "List the workloads that the gate taint would lock out of burst nodes, and those that defeat it",
		Long: `Looks at the cluster before an installation, and changes nothing in it. It lists the workloads of other schedulers that run on
the nodes of burst pools, or could, and would not get there any more once these have the gate taint; and the pods that
tolerate every taint, which keep autoscalers from adding nodes for them. It ends with status 1 if it finds any.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return runPreflight(ctrl.SetupSignalHandler(), o.config, command.OutOrStdout())
		},
	}
}

func runPreflight(ctx context.Context, file string, out io.Writer) error {
	profile, _, pools, err := load(file)
	if err != nil {
		return err
	}
	c, err := newClient()
	if err != nil {
		return err
	}
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	workloads, err := preflight.Workloads(ctx, c, pools, nodes.Items)
	if err != nil {
		return err
	}
	report := preflight.Check(pools, []string{*profile.SchedulerName}, nodes.Items, workloads)
	if err := write(out, report, len(workloads)); err != nil {
		return err
	}
	if !report.Clean() {
		return fmt.Errorf("%d workload(s) need a look before the gate taint is put on burst nodes", len(report.LockedOut)+len(report.TolerateAll))
	}
	return nil
}

func write(out io.Writer, r *preflight.Report, workloads int) error {
	var b strings.Builder
	nodes := "none now; what could run on them cannot be told"
	if len(r.BurstNodes) > 0 {
		nodes = strings.Join(r.BurstNodes, ", ")
	}
	fmt.Fprintf(&b, "Looked at %d workload(s). Nodes of burst pools: %s\n", workloads, nodes)
	section := func(title string, findings []preflight.Finding) {
		fmt.Fprintf(&b, "\n%s: %d\n", title, len(findings))
		for _, f := range findings {
			fmt.Fprintf(&b, "  %s\n    %s\n", f.Workload, f.Message)
		}
	}
	section("Workloads of other schedulers that the gate taint would lock out", r.LockedOut)
	section("Workloads that tolerate every taint", r.TolerateAll)
	_, err := io.WriteString(out, b.String())
	return err
}
