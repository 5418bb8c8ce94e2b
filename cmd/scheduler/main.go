// Command pool-priority-scheduler is kube-scheduler with the PoolPriority plugin, and with the plugins of
// scheduler-plugins that are often combined with it. Each of these plugins is off unless a profile enables it.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"poolpriority.dev/scheduler/pkg/poolpriority/command"
)

func main() {
	os.Exit(cli.Run(command.New()))
}
