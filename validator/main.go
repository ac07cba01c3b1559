// Gpu-validator proves each layer of a node's GPU stack, from the driver to the resources
// that the kubelet offers to pods, and reports why when one cannot be proven.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return runCommand(ctx, commandArgs(os.Args), os.Stdout, os.Stderr)
	}))
}
