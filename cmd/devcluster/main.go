// Command devcluster runs a local control plane to test pool-priority-scheduler. It has etcd, kube-apiserver,
// kube-controller-manager, KWOK nodes, a virtual-kubelet node and a simulated cluster autoscaler.
package main

import (
	"fmt"
	"os"

	"poolpriority.dev/scheduler/test/devcluster/command"
)

func main() {
	if err := command.New().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
}
