package main

import (
	"context"
	"os"
	"strconv"

	"golang.org/x/term"

	"github.com/gpuready/gpuready/test/lab/node"
)

// inside sets up the node and runs all steps.
func inside(ctx context.Context, o options) int {
	color := term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""
	s := newScreen(os.Stdout, o, color, columns())
	if err := node.Setup(); err != nil {
		return s.failed(result{}, &stepError{step: "node", err: err, next: "run it as root on Linux 5.11 or newer with overlayfs"})
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, &timeoutError{o.timeout, "--timeout"})
	defer cancel()
	r := newPipeline(o, s)
	err := r.run(ctx)
	r.end()
	if err != nil {
		return s.failed(r.result(), err)
	}
	return s.countPassed(r.result())
}

// columns returns the width of the terminal, or $COLUMNS; 0: lines are not wrapped.
func columns() int {
	if n, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && n > 0 {
		return n
	}
	n, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil {
		return 0
	}
	return max(n, 0)
}
