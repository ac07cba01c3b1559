package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

const waitHelp = `gpu-device-plugin wait waits until the toolkit would inject this node's GPUs
into a container that is created now, or the node has none. It is for the init
container of a pod whose main container has ` + injection.Variable + `=` + injection.Expected + `.
It prints what it waits for at the start and whenever that changes.

Usage:
  gpu-device-plugin wait [flags]

Flags (command line before environment):
%s
Exit codes:
  0  a container that is created now gets the GPUs, or there are none
  1  not within the timeout, or interrupted; the last line on stderr says why and what to do
  2  bad flag or environment variable
`

// waitOptions are the flags of wait.
type waitOptions struct {
	timeout            time.Duration
	hostRoot, stateDir string
}

func (w *waitOptions) parse(args []string, usage io.Writer) error {
	names := map[string]string{"timeout": "WAIT_TIMEOUT", "host-root": settings.Environment["host-root"], "state-dir": settings.Environment["state-dir"]}
	f := pflag.NewFlagSet("gpu-device-plugin wait", pflag.ContinueOnError)
	f.SortFlags = false
	f.DurationVar(&w.timeout, "timeout", 5*time.Minute, "how long to wait; 0: no limit")
	f.StringVar(&w.hostRoot, "host-root", "/", "`folder` at which the host's file system is mounted")
	f.StringVar(&w.stateDir, "state-dir", settings.DefaultStateDir, "host `path` of the components' states")
	config.Describe(f, names)
	f.Usage = func() { fmt.Fprintf(usage, waitHelp, f.FlagUsagesWrapped(100)) }
	switch err := cmdline.Parse(f, args); {
	case errors.Is(err, pflag.ErrHelp):
		return err
	case err != nil:
		return cmdline.AddHelp(err, f.Name())
	}
	if err := config.Env(f, names); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see gpu-device-plugin wait --help", f.Arg(0))
	case w.timeout < 0:
		return fmt.Errorf("--timeout: %v is negative", w.timeout)
	case !filepath.IsAbs(w.stateDir):
		return fmt.Errorf("--state-dir: path %q must be absolute", w.stateDir)
	}
	return nil
}

// waitCommand waits until a container that is created now gets the GPUs.
func (c *commands) waitCommand(ctx context.Context, args []string) error {
	w := &waitOptions{}
	switch err := w.parse(args, c.stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return c.fail(program.Usage, err)
	}
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	if err := w.waitForInjection(ctx, c.stderr); err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}

func (w *waitOptions) waitForInjection(ctx context.Context, stderr io.Writer) error {
	boot, err := nodestate.BootIDAt(w.hostRoot)
	if err != nil {
		return err
	}
	dir := filepath.Join("/", w.hostRoot, w.stateDir, string(nodestate.Toolkit))
	last := "the toolkit"
	err = injection.Wait(ctx, dir, boot, func(why string) {
		last = why
		fmt.Fprintln(stderr, "gpu-device-plugin: waiting for GPUs to be injected:", why)
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("containers still do not get the GPUs after %v: %s", w.timeout, last)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted while waiting: %s", last)
	}
	return err
}
