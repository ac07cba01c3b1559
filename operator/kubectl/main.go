// Kubectl-gpu shows how far the GPUs of a cluster are. On the PATH it is kubectl's
// plugin "gpu".
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuready/gpuready/operator/kubectl/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
