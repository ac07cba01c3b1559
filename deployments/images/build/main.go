// Command images builds the container images of this project with buildah, from
// the programs that `make build` made and a base without a shell, and writes for
// each an archive and an SBOM. `make images` runs it.
//
// What is to be built is planned from what was read (plan.go), and checked, before
// anything is built; what was built is read again and compared with the plan.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes; options.go tells people of them.
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
		fmt.Fprintln(os.Stderr, "images: interrupted; nothing half-made was left")
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
