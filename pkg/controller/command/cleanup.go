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
		Short: "Remove what an installation leaves behind: the gate taint, annotations of pods, the leases and the published state",
		Long: `Removes what an installation leaves in the cluster: the gate taint of nodes, the annotations that the scheduler and the controller
wrote on pods, including deletion costs that no other client changed, the leases and the published state. First delete the objects
that install the scheduler and the controller. The command repeats the removal until nothing comes back. Pods on burst nodes keep the tolerations
that the controller added: the API server does not allow their removal. The command needs no --config.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var err error
			if c.Client, err = newClient(cleanupRate); err != nil {
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
	fs.StringVar(&c.Installation, "installation", configv1.DefaultInstallation, "name of the installation; its scheduler's configuration sets it as leaderElection.resourceName")
	fs.StringVar(&c.SchedulerName, "scheduler-name", "", "remove annotations only from pods with this schedulerName; default: from all pods, or from none if the cluster has another installation")
	fs.BoolVar(&c.TaintOnly, "taint-only", false, "remove only the gate taint")
	fs.StringSliceVar(&c.Leases, "leases", nil, "names of the leases to delete in the namespace (default: the value of --installation, and pool-priority-controller)")
	fs.StringSliceVar(&c.ConfigMaps, "configmaps", []string{configv1.StatusName}, "names of the ConfigMaps that the scheduler published in the namespace")
	return command
}
