// Package cli is the command line of gpu-operator.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/operator/right"
)

// Exit codes; they stand in --help and are a contract.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitTimeout = 20
)

const exitHelp = `
Exit codes:
  0   done
  1   it failed, or no longer leads
  2   bad usage, or a file that cannot be read
  20  cleanup: the time is over and not everything is gone
`

const usage = `gpu-operator makes a ClusterPolicy into GPUs: on each node the driver, toolkit,
device plugin and validator that it needs, through every upgrade.

Usage:
  gpu-operator [run]             work, in a cluster or from outside of it
  gpu-operator render --policy FILE [--nodes FILE]
                                 print the objects that it would make, without a cluster
  gpu-operator cleanup           take off the cluster what the operator wrote there
  gpu-operator crds              bring the custom resource definition up to date
  gpu-operator version
  gpu-operator COMMAND --help    flags, examples and environment of a command
`

// A coded error carries the exit code that it ends the program with.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

func usageError(format string, args ...any) error {
	return &coded{exitUsage, fmt.Errorf(format, args...)}
}

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if missing := right.Missing(text); len(missing) > 0 {
		text += ": " + right.Message(missing)
	}
	fmt.Fprintf(stderr, "gpu-operator: %s\n", text)
	if c, is := errors.AsType[*coded](err); is {
		return c.code
	}
	return exitFailed
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && args[0] != "--version" && args[0] != "--help" && args[0] != "-h" {
		args = append([]string{"run"}, args...)
	}
	switch args[0] {
	case "run":
		return run(ctx, args[1:], stdout, stderr)
	case "render":
		return render(ctx, args[1:], stdout, stderr)
	case "cleanup":
		return clean(ctx, args[1:], stdout, stderr)
	case "crds":
		return define(ctx, args[1:], stdout, stderr)
	case "--version", "version":
		fmt.Fprintln(stdout, "gpu-operator", version.String())
		return nil
	case "--help", "-h", "help":
		fmt.Fprint(stdout, usage+exitHelp)
		return nil
	}
	return usageError("no command %q; say run, render, cleanup, crds or version, or --help", args[0])
}
