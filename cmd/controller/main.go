// Command pool-priority-controller runs beside the pool-priority scheduler. It adds the gate taint to burst nodes, and
// tolerations to the pods on these nodes, and corrects deletion costs.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"poolpriority.dev/scheduler/pkg/controller/command"
)

// gcPercent is a quarter of Go's default, because the caches are nearly all of this process. They change rarely
// enough that more collections cost little.
const gcPercent = 25

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := command.New().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "pool-priority-controller:", err)
		os.Exit(1)
	}
}
