package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/gpuready/gpuready/deployments/release/registry"
	"github.com/gpuready/gpuready/internal/program"
)

const registryUsage = `Serve a container registry on this machine, by plain HTTP, while a command runs, or until Ctrl-C.

Examples:
  release registry
  release registry --storage bin/release/registry -- release push --dir bin/release/v0.2.0
`

const registryExitCodes = `
Exit codes:
  0  done
  1  the registry did not start
  2  wrong use
  otherwise that of the command, if it fails
`

// runRegistry runs `release registry`.
func runRegistry(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("release registry", registryUsage, registryExitCodes, stdout)
	var c registry.Config
	f.StringVar(&c.Storage, "storage", "bin/release/registry", "the folder in which the registry stores everything")
	f.StringVar(&c.Listen, "listen", "localhost:5005", "host:port at which it listens")
	f.StringVar(&c.Program, "program", "bin/tools/registry", "the registry's program, of github.com/distribution/distribution")
	if err := f.Read(args); err != nil {
		return err
	}
	r, err := registry.Start(ctx, c)
	if err != nil {
		return err
	}
	if f.NArg() == 0 {
		fmt.Fprintf(stdout, "%s serves %s; Ctrl-C ends it\n", r.Host, c.Storage)
		<-ctx.Done()
		return r.Stop()
	}
	cmd := exec.CommandContext(ctx, f.Arg(0), f.Args()[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err = cmd.Run()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed && exit.ExitCode() > 0 {
		err = program.WithExitCode(exit.ExitCode(), program.ErrReported)
	}
	return errors.Join(r.Stop(), err)
}
