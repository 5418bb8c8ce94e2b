// Command pool-priority-controller keeps the cluster in line with the pool-priority scheduler's configuration: the gate
// taint of burst nodes and the tolerations of the pods that are bound to them.
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
