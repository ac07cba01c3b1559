// Gpu-driver installs NVIDIA's kernel modules and user space on a node, from a container
// without a shell, and reports the reason if it cannot.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/driver/cli"
	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}
