// Gpu-validator proves each layer of a node's GPU stack, from the driver to
// what the kubelet offers to pods, and says why when one cannot be proven.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuready/gpuready/validator/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return cli.Main(ctx, cli.Args(os.Args), os.Stdout, os.Stderr)
}
