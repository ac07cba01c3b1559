// Gpu-toolkit makes a node's container runtime able to give containers GPUs: it
// writes CDI specifications from the driver it finds, makes the device nodes
// that are missing, and installs the hook that the specifications name.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/gpu/nvml/reading"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/toolkit/daemon"
)

func main() {
	os.Exit(program.Signalled(func(ctx context.Context) int { return start(ctx, os.Args[1:], os.Stdout, os.Stderr) }))
}

func start(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == reading.Command {
		if err := reading.Print(ctx, args[1:], stdout); err != nil {
			fmt.Fprintln(stderr, "gpu-toolkit:", err)
			return program.Failed
		}
		return 0
	}
	o, err := parse(args)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "gpu-toolkit: %v; see gpu-toolkit --help\n", err)
		return program.Usage
	case o.help:
		fmt.Fprint(stdout, o.usage())
		return 0
	case o.version:
		fmt.Fprintln(stdout, "gpu-toolkit", version.String())
		return 0
	}
	err = run(ctx, o, stdout, stderr)
	if errors.Is(err, daemon.ErrReplaced) {
		// The same process ID and container; only the program's image is new.
		err = fmt.Errorf("start anew: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	if err != nil {
		_, message := o.config.Explain(err)
		fmt.Fprintln(stderr, "gpu-toolkit:", strings.ReplaceAll(message, "\n", "; "))
		return program.Failed
	}
	return 0
}
