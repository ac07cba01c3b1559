// Gpu-operator makes a ClusterPolicy into GPUs: on each node the driver, toolkit, device
// plugin and validator that it needs, through every upgrade.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuready/gpuready/operator/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
