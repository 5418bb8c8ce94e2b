package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/controller/preflight"
	"poolpriority.dev/scheduler/pkg/pool"
)

func newPreflight(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "preflight",
		Short: "List workloads that the gate taint would lock out of burst nodes or that tolerate every taint, and test whether nodes may be tainted",
		Long: `Checks the cluster before an installation, and changes nothing. It lists workloads of other schedulers that use or could use burst nodes
and do not tolerate the gate taint. It lists workloads that tolerate every taint: autoscalers add no nodes for their pods. It lists workloads
of this scheduler whose pods lose their NetworkPolicies or their security settings when they burst. It tests by a dry run whether the
controller's ServiceAccount may taint a node. If you may not impersonate this account, the test uses your own rights. The exit status is 1
if a workload conflicts with the gate taint, or if the controller may not set the taint.

--config is a file with the scheduler's configuration, a ConfigMap that holds it, or Deployments with it in their pod templates, such as
the output of "kubectl kustomize", "helm template" or "kubectl get deployment --output=yaml". --config=- reads the standard input.`,
		Example: `  pool-priority-controller preflight --config=config.yaml
  kubectl kustomize . | pool-priority-controller preflight --config=-`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			source, err := readSource(o.config, command.InOrStdin())
			if err != nil {
				return err
			}
			if flag := command.Flags().Lookup("namespace"); !flag.Changed && source.Namespace != "" {
				o.namespace = source.Namespace
			}
			return runPreflight(ctrl.SetupSignalHandler(), o, source, command.OutOrStdout())
		},
	}
}

// readSource reads the configuration from the file, or from the standard input if the file is "-".
func readSource(file string, stdin io.Reader) (*preflight.Source, error) {
	if file == "" {
		return nil, errNoConfig
	}
	data, err := os.ReadFile(file)
	if file == "-" {
		data, err = io.ReadAll(stdin)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	source, err := preflight.Find(data)
	if err != nil {
		return nil, fmt.Errorf("--config=%s: %w", file, err)
	}
	return source, nil
}

func runPreflight(ctx context.Context, o *options, source *preflight.Source, out io.Writer) error {
	profile, args, pools, err := parse(o.config, source.Config)
	if err != nil {
		return err
	}
	c, err := newClient("", preflightRate)
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
	protections, err := preflight.Protections(ctx, c)
	if err != nil {
		return err
	}
	report := preflight.Check(pools, []string{*profile.SchedulerName}, nodes.Items, workloads, protections)
	tried := trial{}
	if *args.GateTaint {
		account := "system:serviceaccount:" + o.namespace + ":" + cmp.Or(source.ServiceAccount, leaseName)
		asAccount, err := newClient(account, preflightRate)
		if err != nil {
			return err
		}
		tried = try(ctx, asAccount, c, account, pools, nodes.Items)
	}
	if err := write(out, report, len(workloads), tried); err != nil {
		return err
	}
	var errs []error
	if !report.Clean() {
		errs = append(errs, fmt.Errorf("check %d workload(s) before burst nodes get the gate taint", len(report.LockedOut)+len(report.TolerateAll)))
	}
	if tried.denied {
		errs = append(errs, errors.New("the gate taint cannot be put on nodes"))
	}
	return errors.Join(errs...)
}

// trial is the result of the dry run that puts the gate taint on a node.
type trial struct {
	denied  bool
	message string // empty if the configuration turns the gate taint off
}

// try tests by a dry run whether the controller's account may put the gate taint on a node. If the account has no
// rights yet, or if the user may not impersonate the account, try repeats the dry run as the user.
func try(ctx context.Context, asAccount, asOneself client.Client, account string, pools pool.List, nodes []corev1.Node) trial {
	const you = "you"
	who, unsure := account, ""
	node, err := controller.TryGateTaint(ctx, asAccount, pools, nodes)
	if controller.WithoutRight(err) {
		who = you
		unsure = ". It is unknown whether " + account + " may do so: it has no rights yet, or you may not impersonate it. Run the preflight again after the installation"
		node, err = controller.TryGateTaint(ctx, asOneself, pools, nodes)
	}
	switch {
	case node == nil:
		return trial{message: "not tried: there is no node"}
	case who == you && controller.WithoutRight(err):
		return trial{message: "not known, because both dry runs were forbidden: " + account + " has no rights yet, or you may not impersonate it. You may not edit nodes yourself"}
	case err == nil:
		return trial{message: fmt.Sprintf("a dry run shows that %s may put it on node %s%s", who, node.Name, unsure)}
	case controller.Denied(err):
		return trial{denied: true, message: fmt.Sprintf("%s may not put it on node %s: %v\n    %s", who, node.Name, err, controller.DenialAdvice(err))}
	default:
		return trial{message: fmt.Sprintf("not known: %v", err)}
	}
}

func write(out io.Writer, r *preflight.Report, workloads int, tried trial) error {
	var b strings.Builder
	nodes := "none now, so the report cannot list workloads that could run on burst nodes"
	if len(r.BurstNodes) > 0 {
		nodes = strings.Join(r.BurstNodes, ", ")
	}
	fmt.Fprintf(&b, "Checked %d workload(s). Nodes of burst pools: %s\n", workloads, nodes)
	section := func(title string, findings []preflight.Finding) {
		fmt.Fprintf(&b, "\n%s: %d\n", title, len(findings))
		for _, f := range findings {
			fmt.Fprintf(&b, "  %s\n    %s\n", f.Workload, f.Message)
		}
	}
	section("Workloads of other schedulers that the gate taint would lock out", r.LockedOut)
	section("Workloads that tolerate every taint", r.TolerateAll)
	section("Workloads of this scheduler that lose protections in burst pools", r.Losing)
	if tried.message != "" {
		fmt.Fprintf(&b, "\nThe gate taint on nodes\n  %s\n", tried.message)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
