// Command gpu-dra-driver offers a node's GPUs as ResourceSlices and prepares the ResourceClaims of its pods.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return runProgram(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
