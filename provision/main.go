// Gpu-provision measures the time from the request for a node to a running GPU workload, step
// by step, on any cluster and for any GPU stack.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/provision/cli"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
