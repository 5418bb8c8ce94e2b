// Package cli implements the kubectl plugin kubectl pools, which shows the decisions of the pool-priority scheduler,
// and the reasons. The plugin reads the conditions and annotations that the scheduler wrote to pods, and the view that
// the scheduler published. The plugin computes the gate's decisions from the view with the scheduler's own code. Most
// files implement one command. The other files are shared: client.go and published.go read from the cluster, types.go
// defines the output of -o json, and table.go prints tables.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/version"
)

const (
	// exitDone, exitFound and exitFailed are the exit statuses. As in kubectl diff, commands that find a problem end
	// with exitFound.
	exitDone, exitFound, exitFailed = 0, 1, 2

	// defaultStatus is the ConfigMap to which the scheduler publishes its state by default.
	defaultStatus = "pool-priority-system/pool-priority-status"
)

// Run runs the command that args name. args[0] is the name of the program. Run returns the exit status: 0 if the
// command succeeded, 1 if it found a problem, 2 if it failed.
func Run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	o := newOptions(streams)
	o.name = displayName(args[0])
	return o.run(ctx, args[1:])
}

// options are shared by all commands.
type options struct {
	genericiooptions.IOStreams
	kube *genericclioptions.ConfigFlags
	name string // the name of the command in help texts
	// status is the namespace/name of the published ConfigMap.
	status, output, color string
	noHeaders             bool
	// clock measures the time since the API server's last Date header, and zone is the time zone of the output.
	clock clock.PassiveClock
	zone  *time.Location
	// isTerminal reports whether the output is a terminal.
	isTerminal func(io.Writer) bool
	environ    func(string) string
}

func newOptions(streams genericiooptions.IOStreams) *options {
	kube := genericclioptions.NewConfigFlags(true)
	kube.CacheDir = nil // the cache is for API discovery, which no command uses
	return &options{
		IOStreams: streams, kube: kube, name: "kubectl pools", clock: clock.RealClock{}, zone: time.Local,
		isTerminal: func(w io.Writer) bool {
			f, ok := w.(*os.File)
			return ok && term.IsTerminal(int(f.Fd()))
		},
		environ: os.Getenv,
	}
}

func (o *options) run(ctx context.Context, args []string) int {
	root := o.root()
	root.SetArgs(append([]string{}, args...)) // if args is nil, cobra uses the arguments of the process
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.ErrOut)
	switch err := root.ExecuteContext(ctx); {
	case errors.Is(err, errFound):
		return exitFound
	case err != nil:
		fmt.Fprintf(o.ErrOut, "error: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// displayName returns the name that help texts show. For a kubectl plugin, the name is kubectl and the words of the
// plugin's file name.
func displayName(program string) string {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	if words, plugin := strings.CutPrefix(name, "kubectl-"); plugin {
		return "kubectl " + strings.ReplaceAll(strings.ReplaceAll(words, "-", " "), "_", "-")
	}
	return name
}

func (o *options) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-pools",
		Short: "Show node pools in order, and why a pod waits or bursts",
		Long: "Show the node pools of the pool-priority scheduler in order, how full they are, whether they can grow, and why a pod waits or bursts.\n" +
			"The default command is status.",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: o.name},
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.runStatus(c.Context(), nil) },
	}
	fs := root.PersistentFlags()
	o.kube.AddFlags(fs)
	fs.StringVar(&o.status, "status", defaultStatus, "namespace/name of the ConfigMap that the scheduler publishes")
	fs.StringVarP(&o.output, "output", "o", "", "wide, json, yaml or name")
	fs.BoolVar(&o.noHeaders, "no-headers", false, "print no headers")
	fs.StringVar(&o.color, "color", "auto", "auto, always or never; auto: on a terminal, unless NO_COLOR is set")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return o.check() }
	root.AddCommand(o.newStatus(), o.newExplain(), o.newPods(), o.newExpander(), o.newInit(), o.newLint(), o.newVersion())
	for flag, values := range map[string][]string{"output": outputs, "color": colors} {
		_ = root.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // it fails only if the flag is not defined
	}
	return root
}

var (
	outputs = []string{"wide", "json", "yaml", "name"}
	colors  = []string{"auto", "always", "never"}
)

// check validates the flags that all commands share.
func (o *options) check() error {
	if o.output != "" && !slices.Contains(outputs, o.output) {
		return fmt.Errorf("--output=%s: use %s", o.output, strings.Join(outputs, ", "))
	}
	if !slices.Contains(colors, o.color) {
		return fmt.Errorf("--color=%s: use %s", o.color, strings.Join(colors, ", "))
	}
	if namespace, name, ok := strings.Cut(o.status, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("--status=%s: use namespace/name, such as %s", o.status, defaultStatus)
	}
	return nil
}

// wide reports whether the output format is wide.
func (o *options) wide() bool { return o.output == "wide" }

// colored reports whether the output has colours.
func (o *options) colored() bool {
	suits := o.environ("NO_COLOR") == "" && o.environ("TERM") != "dumb" && o.isTerminal(o.Out)
	return o.color == "always" || o.color == "auto" && suits
}

func (o *options) newVersion() *cobra.Command {
	clientOnly := false
	c := &cobra.Command{
		Use: "version", Short: "Print the versions of kubectl pools and of the leading scheduler", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.runVersion(c.Context(), clientOnly) },
	}
	c.Flags().BoolVar(&clientOnly, "client", false, "print only the version of kubectl pools")
	return c
}

func (o *options) runVersion(ctx context.Context, clientOnly bool) error {
	v := Version{TypeMeta: typeMeta("Version"), Client: version.String()}
	var err error
	if !clientOnly {
		var p *publishedState
		if _, p, err = o.connectPublished(ctx); err == nil {
			v.Scheduler, v.Leader = p.view.Version, p.view.Leader
		}
	}
	text := "Client: " + v.Client + "\n"
	if v.Scheduler != "" {
		text += "Scheduler: " + v.Scheduler + ", " + v.Leader + " leads\n"
	}
	return errors.Join(o.print(v, nil, func(w io.Writer) { fmt.Fprint(w, text) }), err)
}
