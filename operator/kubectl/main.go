// Kubectl-gpu shows the state of a cluster's GPUs. On the PATH it is kubectl's plugin "gpu".
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/cli"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
