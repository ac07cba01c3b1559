package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/workload"
)

// Exit codes beside those common to all programs. They are listed in --help and are a
// contract.
const (
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
  0   the layers are proven (run, component: or the node has no GPU; explain: always, if it could
      read or ask; host-driver: the host has none)
  1   the validator itself failed, or was interrupted
  2   bad usage or configuration
  3   host-driver: the host has a driver of its own
  10  driver is not ready
  11  toolkit is not ready, or (wait injection) cannot inject
  12  cuda is not ready
  13  plugin is not ready
  20  wait: timed out, and nothing is known yet of the layer or the toolkit
  30 to 36  peermem, gds, gdrcopy, mofed, fabric, vfio or vgpu was asked for and is not ready, in
      this order
  40 to 43  preflight: a GPU is unhealthy, computes or stores wrong values, is slow, or could not be
      fully tested
`

const usage = `gpu-validator proves that this node's GPUs can be used, layer by layer:
driver, toolkit, cuda, plugin, each only after those before it.

Usage:
  gpu-validator run [--layers driver,cuda] [-o text|json|junit]
                                 check once and report
  gpu-validator wait LAYER...    wait until the daemon has proven the layers
  gpu-validator wait injection   wait until containers are given the GPUs
  gpu-validator explain [--node N]
                                 show how far a node is from ready, and why
  gpu-validator daemon           keep the proofs up to date
  gpu-validator preflight        health, right results and speed of every GPU, in seconds
  gpu-validator component        prove one layer as nvidia-validator does, by $COMPONENT
  gpu-validator host-driver      report whether the host has a driver of its own
  gpu-validator COMMAND --help   flags, examples and environment of a command
  gpu-validator version          print the version
  gpu-validator completion SHELL print a script that completes command lines: bash, zsh or fish
`

// standIn is the name of the reference's validator: a program of this name accepts its
// flags and environment.
const standIn = "nvidia-validator"

// commandArgs returns the arguments for runCommand from those of a process, argv[0] included.
func commandArgs(argv []string) []string {
	if len(argv) > 0 && filepath.Base(argv[0]) == standIn {
		return append([]string{"component"}, argv[1:]...)
	}
	return argv[min(1, len(argv)):]
}

// nodeName returns the name of this node. In a pod the host name is the pod's.
func nodeName() (string, error) {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	return os.Hostname()
}

// runCommand runs the command line and returns the exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "gpu-validator", Help: usage + exitHelp,
		Commands: []program.Command{
			{Name: "run", Run: runOnce},
			{Name: "wait", Run: wait},
			{Name: "explain", Run: runExplain},
			{Name: "component", Run: component},
			{Name: "daemon", Run: runDaemon},
			{Name: "host-driver", Run: hostDriver},
			{Name: "preflight", Run: runPreflight},
			{Name: probe.WatchCommand, Run: watchChild, Hidden: true},
			{Name: probe.Command, Run: readChild, Hidden: true},
			{Name: probe.UsageCommand, Run: usageChild, Hidden: true},
			{Name: workload.PodCommand, Run: runSample, Hidden: true},
		},
	}.Run(ctx, args, stdout, stderr)
}

// watchChild, readChild and usageChild run the child processes that read the driver.
func watchChild(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return probe.WatchChild(ctx, args, os.Stdin, stdout)
}

func readChild(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return probe.Child(ctx, args, stdout)
}

func usageChild(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return probe.UsageChild(ctx, args, stdout)
}
