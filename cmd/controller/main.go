// Command pool-priority-controller runs beside the pool-priority scheduler. It keeps the gate taint on burst nodes,
// adds tolerations to the pods that run there, evicts pods that failed to start there, corrects deletion costs, and
// returns pods to VMs.
package main

import (
	"fmt"
	"os"

	"poolpriority.dev/scheduler/pkg/controller/command"
)

func main() {
	if err := command.New().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "pool-priority-controller:", err)
		os.Exit(1)
	}
}
