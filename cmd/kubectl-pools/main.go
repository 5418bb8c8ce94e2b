// Command kubectl-pools is the kubectl plugin kubectl pools. It shows the decisions of the pool-priority scheduler, and
// the reasons.
package main

import (
	"context"
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the login methods that a kubeconfig may use

	"poolpriority.dev/scheduler/pkg/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
}
