package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"poolpriority.dev/scheduler/pkg/lint"
	"poolpriority.dev/scheduler/pkg/version"
)

// lintOptions are the flags of lint.
type lintOptions struct {
	aks, quota, file string
	local            bool
}

func (o *options) newLint() *cobra.Command {
	l := &lintOptions{}
	c := &cobra.Command{
		Use:   "lint",
		Short: "Find what keeps this cluster from bursting, or from growing its pools in order",
		Long: "Find what keeps this cluster from bursting, or from growing its pools in order, and change nothing. Each finding has a code, a severity, an object,\n" +
			"and what to do. If there is a finding of severity Error, the exit status is 1. What could not be read is listed as not checked.\n\n" +
			"Only Azure knows some of the facts. --aks is a file with the output of az aks show --output json, and --quota one with the output of the az rest\n" +
			"command in docs/aci.md. With --local, lint reads only these files, so that it can answer before there is an installation, or a cluster, whether\n" +
			"the cluster can have a virtual node.\n\n" +
			"--filename is a file with a scheduler configuration that is not installed yet, or with workloads. The configuration may be in the output of\n" +
			"helm template, kubectl kustomize or kubectl get deployment --output=yaml.",
		Example: fmt.Sprintf("  %[1]s lint\n  helm template … | %[1]s lint -f -\n  az aks show -g RG -n CLUSTER -o json > aks.json\n  %[1]s lint --aks aks.json --local\n  %[1]s lint --aks aks.json --quota quota.json", o.name),
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return o.runLint(c.Context(), l) },
	}
	o.addAzure(c, l)
	c.Flags().StringVarP(&l.file, "filename", "f", "", "a file with a configuration, or with workloads; - is the standard input")
	c.Flags().BoolVar(&l.local, "local", false, "read only the files, and no cluster")
	return c
}

// addAzure adds the flags for files with what only Azure knows.
func (o *options) addAzure(c *cobra.Command, l *lintOptions) {
	c.Flags().StringVar(&l.aks, "aks", "", "a file with the output of az aks show --output json; - is the standard input")
	c.Flags().StringVar(&l.quota, "quota", "", "a file with the usages of Container Instances in the region; - is the standard input")
}

func (o *options) runLint(ctx context.Context, flags *lintOptions) error {
	report := LintReport{TypeMeta: typeMeta("LintReport"), Findings: []lint.Finding{}}
	l := &linter{options: o}
	l.skip = func(what string, err error) {
		report.NotChecked = append(report.NotChecked, what+": "+oneLine(err).Error())
	}
	read := 0
	for _, file := range []struct {
		flag, name, about string
		parse             func([]byte) error
	}{
		{"--aks", flags.aks, "the network, and the expander of the autoscaler", func(data []byte) (err error) { l.AKS, err = lint.ParseAKS(data); return err }},
		{"--quota", flags.quota, "the quota of Container Instances", func(data []byte) (err error) { l.Quota, err = lint.ParseQuota(data); return err }},
		{"--filename", flags.file, "", l.parse},
	} {
		if file.name == "" {
			if file.about != "" {
				l.skip(file.about, errors.New("give "+file.flag))
			}
			continue
		}
		if err := o.parseFile(file.flag, file.name, file.parse); err != nil {
			return err
		}
		read++
	}
	if l.AKS != nil && l.AKS.CurrentKubernetesVersion == "" {
		l.skip("the version of Kubernetes", errors.New("the file of --aks does not have it"))
	}
	if l.AKS != nil && l.AKS.AutoScalerProfile.Expander == "" {
		l.skip("the settings of the cluster autoscaler", errors.New("the file of --aks does not have them"))
	}
	switch {
	case flags.local && read == 0:
		return errors.New("--local reads only files: give --aks, --quota or --filename")
	case flags.local:
		l.skip("the cluster and the scheduler", errors.New("--local"))
	case !l.readCluster(ctx) && read == 0:
		return fmt.Errorf("nothing could be checked: %s", strings.Join(report.NotChecked, "; "))
	}
	if l.Workloads == nil { // without a cluster, or without a scheduler
		l.addWorkloads(l.files)
	}
	if l.Pools.Len() == 0 && l.Quota != nil {
		l.skip("whether the budgets are below the quota", errors.New("the configuration is not known"))
	}
	report.Findings = append(report.Findings, lint.Check(&l.Facts)...)
	if l.AKS != nil {
		v1, v2 := l.AKS.VirtualNodes()
		report.VirtualNodeV1, report.VirtualNodeV2 = v1.String(), v2.String()
	}
	var codes []string
	failed := false
	for _, f := range report.Findings {
		codes = append(codes, f.Code)
		failed = failed || f.Severity == lint.Error
	}
	err := o.print(report, codes, func(w io.Writer) { report.write(w) })
	if err == nil && failed {
		return errFound
	}
	return err
}

// parseFile parses the file that the flag names; - is the standard input.
func (o *options) parseFile(flag, name string, parse func([]byte) error) (err error) {
	var data []byte
	if name == "-" {
		data, err = io.ReadAll(o.In)
	} else {
		data, err = os.ReadFile(name)
	}
	if err == nil { // PowerShell may write UTF-16, or a byte-order mark
		data, _, err = transform.Bytes(unicode.BOMOverride(transform.Nop), data)
	}
	if err == nil {
		err = parse(data)
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w", flag, name, oneLine(err))
	}
	return nil
}

// readCluster adds the facts that the cluster has. It reports whether it could read any.
func (l *linter) readCluster(ctx context.Context) bool {
	c, err := l.connect()
	if err != nil {
		l.skip("the cluster", err)
		return false
	}
	server, err := c.client.Discovery().ServerVersion()
	if err != nil {
		l.skip("the cluster", c.plainly("get its version", err))
		return false
	}
	l.Server = version.Supported(server)
	if l.config == nil {
		if l.published, err = c.published(ctx); err != nil {
			l.skip("the pools, workloads, and the gate taint", fmt.Errorf("%w. Before an installation, give --filename", err))
			return true
		}
		l.readPublished(ctx, c)
	}
	l.readNodes(ctx, c)
	l.readWorkloads(ctx, c)
	return true
}

// readPublished adds the facts that the running scheduler published, and those of its autoscalers.
func (l *linter) readPublished(ctx context.Context, c *cluster) {
	p := l.published
	l.Pools, l.View, l.GroupsKnown, l.Problems = p.pools, &p.view.Capacity, true, append(p.notes(c.now()), p.view.Problems...)
	l.Scheduler, l.Args = p.view.SchedulerName, p.view.Args
	groups := p.growing()
	nodePools, err := c.nodePools(ctx, groups)
	if err != nil {
		l.skip("the NodePools, and the order in which pools grow", err)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(nodePools)) {
		if len(nodePools[name].Spec.Limits) == 0 {
			l.Unlimited = append(l.Unlimited, name)
		}
	}
	if l.Disorder, err = c.disorder(ctx, p, groups, nodePools); err != nil {
		l.skip("the order in which pools grow", err)
	}
}

// write writes the report for people.
func (r *LintReport) write(w io.Writer) {
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%-8s %s: %s\n", strings.ToUpper(string(f.Severity)), f.Code, f.Object)
		fmt.Fprintf(w, "         %s\n", f.Message)
		if f.Remedy != "" {
			fmt.Fprintf(w, "         → %s\n", f.Remedy)
		}
		fmt.Fprintf(w, "         %s\n", f.See)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "Found no problem.")
	}
	if r.VirtualNodeV1 != "" {
		fmt.Fprintf(w, "\nVirtual node, the add-on (v1)  %s\nVirtual nodes v2               %s\n", r.VirtualNodeV1, r.VirtualNodeV2)
	}
	if len(r.NotChecked) > 0 {
		fmt.Fprintf(w, "\nNot checked:\n  %s\n", strings.Join(r.NotChecked, "\n  "))
	}
}
