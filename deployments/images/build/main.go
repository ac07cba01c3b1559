// Command images builds the container images of this project with buildah, from the
// programs of `make build` and a base without a shell. It writes an archive and an SBOM
// for each. `make images` runs it.
//
// It plans and checks an image (plan.go) before it builds anything. Then it reads the
// built image and compares it with the plan.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes, documented in options.go.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(start()) }

func start() int {
	o, err := parse(os.Args[1:])
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "images: %v; see images --help\n", err)
		return exitUsage
	case o.help:
		fmt.Print(o.usage())
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	results, err := run(ctx, o, os.Stderr)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "images: interrupted; no incomplete files were left")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(os.Stderr, "images:", err)
		return exitFailed
	}
	if err := report(os.Stdout, results, o.output); err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintln(os.Stderr, "images:", err)
		return exitFailed
	}
	return 0
}
