// Gpusim creates, breaks and repairs a simulated NVIDIA driver: a folder that programs
// take for an installed driver, without a GPU.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/simulator/gpusim/command"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return command.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
