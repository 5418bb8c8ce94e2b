package command

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"poolpriority.dev/scheduler/test/devcluster/demo"
)

func newDemo(f *flags) *cobra.Command {
	var manifests, pictures string
	command := &cobra.Command{
		Use:   "demo",
		Short: "Play experiments with the scheduler on clusters of its own and judge the order; exit status 1 if it was wrong",
		Long: `Play experiments with the scheduler on clusters of its own and judge the order; exit status 1 if it was wrong. The first load is
played once more with the default scheduler and nothing of ours. ` + demo.PictureFile + ` shows both, ` + demo.TimelineFile + ` has what was seen.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			dir, err := filepath.Abs(f.dir)
			if err != nil {
				return err
			}
			if pictures == "" {
				pictures = f.dir
			}
			if err := os.MkdirAll(pictures, 0o755); err != nil { //nolint:gosec // it may be a directory of the repository
				return fmt.Errorf("making the directory of the picture: %w", err)
			}
			return demo.Run(ctx, demo.Options{Dir: dir, BinDir: f.bin, Manifests: manifests, Pictures: pictures, Out: cmd.OutOrStdout()})
		},
	}
	command.Flags().StringVar(&manifests, "manifests", "manifests", "directory of the shipped manifests")
	command.Flags().StringVar(&pictures, "pictures", "", "directory that "+demo.PictureFile+" and "+demo.TimelineFile+" are written to; default: that of --dir")
	return command
}
