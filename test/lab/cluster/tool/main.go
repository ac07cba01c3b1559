// Command cluster starts a real Kubernetes cluster on this machine and removes it again without a
// trace; package cluster describes its parts.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/folder"
)

// Exit codes; 2 is bad usage.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotUp       = 3
	exitInterrupted = 130
)

// usageError is an invalid command line.
type usageError struct{ error }

func main() {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	program.OutliveReaders() // also those of make cluster | tee
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	exit := report(ctx, run(ctx, os.Args[1:]))
	stop()
	os.Exit(exit)
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return usageError{err}
	}
	if o.help {
		help(os.Stdout, o)
		return nil
	}
	switch o.command {
	case "up":
		return up(ctx, o)
	case "down":
		return down(o)
	case "status":
		return status(ctx, o)
	case "logs":
		return logs(ctx, o)
	case "reboot", "add-node", "remove-node":
		return changeNode(ctx, o, os.Stdout)
	}
	return build(ctx)
}

// report prints the error and returns the exit code.
func report(ctx context.Context, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errGoesOn):
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return exitInterrupted
	case ctx.Err() != nil && !errors.Is(err, cluster.ErrLeftBehind):
		fmt.Fprintln(os.Stderr, "cluster: interrupted; nothing is left behind")
		return exitInterrupted
	}
	fmt.Fprintln(os.Stderr, "cluster:", err)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, folder.ErrNotUp):
		return exitNotUp
	}
	return exitFailed
}
