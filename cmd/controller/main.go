// Command pool-priority-controller runs beside the pool-priority scheduler. It adds the gate taint to burst nodes, and
// tolerations to the pods on these nodes, and corrects deletion costs.
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
