// Command kubectl-pools shows what the pool-priority scheduler decides, and why: kubectl pools.
package main

import (
	"context"
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // what a kubeconfig may log in with

	"poolpriority.dev/scheduler/pkg/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
}
