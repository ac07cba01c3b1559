package main

import (
	"context"
	"io"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/status"
)

// exitTimeout is the exit code of a cleanup that timed out, besides the codes of all programs (package
// program).
const exitTimeout = 20

const exitHelp = `
Exit codes:
  0   done
  1   it failed, or is no longer the leader
  2   bad usage, or a file that cannot be read
  20  cleanup: not everything is gone within the timeout
`

const usage = `gpu-operator applies a ClusterPolicy to the cluster: each GPU node gets the driver,
toolkit, device plugin and validator that it needs, through every upgrade.

Usage:
  gpu-operator [run]             run the operator, in a cluster or from outside of it
  gpu-operator render --policy FILE [--nodes FILE]
                                 print the objects that it would create, without a cluster
  gpu-operator check FILE...     tell what it makes of policies for NVIDIA's operator
  gpu-operator cleanup           remove from the cluster what the operator wrote
  gpu-operator crds              upgrade the custom resource definition
  gpu-operator version           print the version
  gpu-operator completion SHELL  print a script that completes command lines: bash, zsh or fish
  gpu-operator COMMAND --help    flags, examples and environment of a command
`

// runCommand runs the command line and returns the exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "gpu-operator", Help: usage + exitHelp, DefaultCommand: "run",
		Commands: []program.Command{
			{Name: "run", Run: run},
			{Name: "render", Run: render},
			{Name: "check", Run: check},
			{Name: "cleanup", Run: runCleanup},
			{Name: "crds", Run: upgradeCRDs},
		},
		Advise: func(text string) string {
			if missing := status.MissingRights(text); len(missing) > 0 {
				return status.RightsMessage(missing)
			}
			return ""
		},
	}.Run(ctx, args, stdout, stderr)
}
