package main

import (
	"context"
	"os"

	"golang.org/x/term"

	"github.com/gpuready/gpuready/test/lab/node"
)

// inside sets up the node and runs all steps.
func inside(ctx context.Context, o options) int {
	color := term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""
	s := newScreen(os.Stdout, o, color)
	if err := node.Setup(); err != nil {
		return s.failed(&stepError{step: "node", err: err, next: "run it as root on Linux 5.11 or newer with overlayfs"})
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r := newPipeline(o, s)
	err := r.run(ctx)
	r.end()
	if err != nil {
		return s.failed(err)
	}
	return s.countPassed(r.result())
}
