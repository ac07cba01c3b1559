// Gpu-operator applies a ClusterPolicy to the cluster: each GPU node gets the driver, toolkit,
// device plugin and validator that it needs, through every upgrade.
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
