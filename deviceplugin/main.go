// Command gpu-device-plugin advertises a node's NVIDIA GPUs to the kubelet and
// allocates them to containers.
package main

import (
	"context"
	"os"
	"time"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	started := time.Now()
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return runProgram(ctx, started, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
