// Command demo shows a GPU going through all components on one machine: driver → toolkit → device
// plugin → kubelet → container → CUDA job. The programs are the real ones with the paths of
// production, on a private node (test/lab/node). The kubelet is the in-process one, and the container
// runtime is runc.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/test/lab/node"
)

// Exit codes; 2 is bad usage.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // it cleans up even if nobody reads its output any more
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(exitUsage)
	}
	if o.help {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if node.Inside() {
		os.Exit(inside(ctx, o))
	}
	os.Exit(outside(ctx))
}

// outside runs the demo again on a private node and returns its exit code.
func outside(ctx context.Context) int {
	// The node gets the signals of the terminal itself; it is killed only if that does not end it.
	inner, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd, name, err := node.Command(inner, os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return exitFailed
	}
	defer node.Cleanup(name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: start a private node: %v; the machine must allow root to make namespaces\n", err)
		return exitFailed
	}
	unwatch := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		time.AfterFunc(10*time.Second, kill)
	})
	defer unwatch()
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode()
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "demo: the private node was ended:", err)
		return exitFailed
	}
	return 0
}
