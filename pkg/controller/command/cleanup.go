package command

import (
	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/controller/cleanup"
)

func newCleanup(o *options) *cobra.Command {
	c := cleanup.Cleaner{Clock: clock.RealClock{}}
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Take away what an installation leaves behind: the gate taint, what was written on pods, the leases and the published state",
		Long: `Takes away what an installation leaves in the cluster besides the objects that install it, which must be removed before: the gate taint of
nodes, the annotations that the scheduler and the controller wrote on pods, with the deletion costs among them that nobody changed, the leases
and the published state. It looks again until nothing comes back. The tolerations that pods on burst nodes were given stay with them: the
API server lets nobody take a toleration away. It needs no --config.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var err error
			if c.Client, err = newClient("", cleanupRate); err != nil {
				return err
			}
			c.Namespace = o.namespace
			if len(c.Leases) == 0 {
				c.Leases = []string{c.Installation, leaseName}
			}
			return c.Run(ctrl.SetupSignalHandler())
		},
	}
	fs := command.Flags()
	fs.StringVar(&c.Installation, "installation", configv1.DefaultInstallation, "name of the installation: leaderElection.resourceName of its configuration")
	fs.StringVar(&c.SchedulerName, "scheduler-name", "", "look only at pods that name this scheduler; default: at all pods, unless there is another installation")
	fs.BoolVar(&c.TaintOnly, "taint-only", false, "take the gate taint off, and nothing else away")
	fs.StringSliceVar(&c.Leases, "leases", nil, "names of the leases in the namespace (default: the installation's and pool-priority-controller)")
	fs.StringSliceVar(&c.ConfigMaps, "configmaps", []string{configv1.StatusName}, "names of the ConfigMaps in the namespace that the scheduler published")
	return command
}
