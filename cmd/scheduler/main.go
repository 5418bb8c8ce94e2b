// Command pool-priority-scheduler is kube-scheduler with the PoolPriority plugin. It also contains the plugins of the
// project scheduler-plugins that users often combine with PoolPriority. A profile must enable each plugin.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"poolpriority.dev/scheduler/pkg/poolpriority/command"
)

func main() {
	os.Exit(cli.Run(command.New()))
}
