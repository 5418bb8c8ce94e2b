// Command pool-priority-scheduler is kube-scheduler with the PoolPriority plugin, and with the plugins of
// scheduler-plugins that people combine with it. None of them is on unless a profile enables it.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // for the metrics of API calls
	_ "k8s.io/component-base/metrics/prometheus/version"  // for the metric of the version
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // for the arguments of its plugins
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesources"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/poolpriority"
)

func main() {
	command, err := newCommand()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(cli.Run(command))
}

func newCommand() (*cobra.Command, error) {
	if err := configv1.Register(); err != nil {
		return nil, err
	}
	command := app.NewSchedulerCommand(
		app.WithPlugin(poolpriority.Name, poolpriority.New),
		app.WithPlugin(coscheduling.Name, coscheduling.New),
		app.WithPlugin(noderesources.AllocatableName, noderesources.NewAllocatable),
	)
	command.Use = "pool-priority-scheduler"
	command.Long = `A kube-scheduler that fills node pools in order and opens burst pools (AKS virtual nodes) only when the pools before
them can grow no more. The order is set in the arguments of the PoolPriority plugin, in the KubeSchedulerConfiguration
that --config names. Pods opt in by schedulerName.`
	return command, nil
}
