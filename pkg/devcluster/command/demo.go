package command

import (
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"poolpriority.dev/scheduler/pkg/devcluster/demo"
)

func newDemo(f *flags) *cobra.Command {
	var manifests string
	command := &cobra.Command{
		Use:   "demo",
		Short: "Play experiments with the scheduler on clusters of its own and judge the order; exit status 1 if it was wrong",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			dir, err := filepath.Abs(f.dir)
			if err != nil {
				return err
			}
			return demo.Run(ctx, demo.Options{Dir: dir, BinDir: f.bin, Manifests: manifests, Out: cmd.OutOrStdout()})
		},
	}
	command.Flags().StringVar(&manifests, "manifests", "manifests", "directory of the shipped manifests")
	return command
}
