// Command release makes a release from what `make` built, and publishes it. `make release` runs it.
//
// Its commands meet in the folder of a release, which package contents describes.
package main

import (
	"context"
	"os"

	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return program.Program{Name: "release", Help: help, Commands: commands}.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}

// commands are the commands; each has a file of its name.
var commands = []program.Command{
	{Name: "build", Run: build},
	{Name: "push", Run: push},
	{Name: "sign", Run: runSign},
	{Name: "verify", Run: runVerify},
	{Name: "mirror", Run: mirrorRelease},
	{Name: "load", Run: load},
	{Name: "registry", Run: runRegistry},
}

const exitCodes = `
Exit codes:
  0  done
  1  failed; the reason is on standard error
  2  wrong use
`

const help = `release makes and publishes a release: images, chart, OLM bundle and catalog, kubectl-gpu, manifests.

Usage:
  release COMMAND [flags]

Commands:
  build     make a release from what make built
  push      push a release to its registry
  sign      sign what was pushed, attach provenance and SBOMs, and publish the release
  verify    verify a published release, as a stranger would
  mirror    prepare a release for clusters without the internet
  load      push an archive of release mirror to a registry
  registry  serve a registry on this machine while a command runs

release COMMAND --help lists the flags of a command, with their environment variables.
` + exitCodes
