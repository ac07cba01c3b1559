// Kubectl-gpu shows the state of a cluster's GPUs. On the PATH it is kubectl's plugin "gpu".
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
