// Gpu-toolkit enables a node's container runtime to give GPUs to containers: it writes CDI
// specifications for the driver it finds, creates missing device nodes, and installs the hook
// that the specifications name.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int { return runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr) }))
}
