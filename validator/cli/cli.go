// Package cli is the command line of gpu-validator.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/workload/inside"
)

// Exit codes; they stand in --help and are a contract.
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitHostDriver = 3
	exitDriver     = 10
	exitToolkit    = 11
	exitCUDA       = 12
	exitPlugin     = 13
	exitTimeout    = 20
	exitPeermem    = 30
	exitGDS        = 31
	exitGDRCopy    = 32
	exitMOFED      = 33
	exitFabric     = 34
	exitVFIO       = 35
	exitVGPU       = 36
)

var layerCodes = map[readiness.Layer]int{
	readiness.Driver: exitDriver, readiness.Toolkit: exitToolkit, readiness.CUDA: exitCUDA, readiness.Plugin: exitPlugin,
	readiness.Peermem: exitPeermem, readiness.GDS: exitGDS, readiness.GDRCopy: exitGDRCopy, readiness.MOFED: exitMOFED,
	readiness.Fabric: exitFabric, readiness.VFIO: exitVFIO, readiness.VGPU: exitVGPU,
}

const exitHelp = `
Exit codes:
  0   the layers are proven (run, component: or the node has no GPU; explain: always, if it could read or ask;
      host-driver: the host has none)
  1   the validator itself failed, or was interrupted
  2   bad usage or configuration
  3   host-driver: the host has a driver of its own
  10  driver is not ready
  11  toolkit is not ready, or (wait injection) cannot inject
  12  cuda is not ready
  13  plugin is not ready
  20  wait: the time is over and nothing is known of the layer, or of the toolkit, yet
  30 to 36  peermem, gds, gdrcopy, mofed, fabric, vfio or vgpu was asked for and is not ready, in this order
  40 to 43  preflight: a GPU is unhealthy, computes or remembers wrong, is slow, or not all could be tried
`

const usage = `gpu-validator proves that this node's GPUs can be used, layer by layer:
driver, toolkit, cuda, plugin, each only after those before it.

Usage:
  gpu-validator run [--layers driver,cuda] [-o text|json|junit]
                                 check once and report
  gpu-validator wait LAYER...    wait until the daemon has proven the layers
  gpu-validator wait injection   wait until containers are given the GPUs
  gpu-validator explain [--node N]
                                 show how far a node is, and why not farther
  gpu-validator daemon           keep the proofs up to date
  gpu-validator preflight        health, right results and speed of every GPU, in seconds
  gpu-validator component        prove one layer as nvidia-validator does, by $COMPONENT
  gpu-validator host-driver      tell whether the host has a driver of its own
  gpu-validator COMMAND --help   flags, examples and environment of a command
  gpu-validator --version
`

// standIn is the name of the reference's validator: a program that is called so takes
// its flags and environment.
const standIn = "nvidia-validator"

// Args are the arguments of a process, of which the first is how it was called.
func Args(argv []string) []string {
	if len(argv) > 0 && filepath.Base(argv[0]) == standIn {
		return append([]string{"component"}, argv[1:]...)
	}
	return argv[min(1, len(argv)):]
}

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

// nodeName is what this node is called: in a pod the host's name is the pod's.
func nodeName() (string, error) {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	return os.Hostname()
}

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	if !errors.Is(err, errSaid) {
		fmt.Fprintf(stderr, "gpu-validator: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if c, is := errors.AsType[*coded](err); is {
		return c.code
	}
	return exitFailed
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usageError("no command; say run, wait, explain, component, daemon, host-driver or preflight, or --help")
	}
	switch args[0] {
	case "run":
		return runOnce(ctx, args[1:], stdout, stderr)
	case "wait":
		return wait(ctx, args[1:], stdout, stderr)
	case "explain":
		return explainRoad(ctx, args[1:], stdout, stderr)
	case "component":
		return component(ctx, args[1:], stdout, stderr)
	case "daemon":
		return serve(ctx, args[1:], stdout, stderr)
	case "host-driver":
		return hostDriver(ctx, args[1:], stdout)
	case "preflight":
		return runPreflight(ctx, args[1:], stdout, stderr)
	case probe.WatchCommand:
		return probe.WatchChild(ctx, args[1:], os.Stdin, stdout)
	case probe.Command:
		return probe.Child(ctx, args[1:], stdout)
	case inside.Subcommand:
		return runSample(ctx, args[1:], stdout, stderr)
	case "--version", "version":
		fmt.Fprintln(stdout, "gpu-validator", version.String())
		return nil
	case "--help", "-h", "help":
		fmt.Fprint(stdout, usage+exitHelp)
		return nil
	}
	return usageError("no command %q; say run, wait, explain, component, daemon, host-driver or preflight, or --help", args[0])
}
