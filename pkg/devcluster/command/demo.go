package command

import "github.com/spf13/cobra"

func newDemo(_ *flags) *cobra.Command { return &cobra.Command{Use: "demo"} }
