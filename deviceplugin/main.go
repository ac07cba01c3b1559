// Command gpu-device-plugin advertises a node's NVIDIA GPUs to the kubelet and
// allocates them to containers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/handover"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
)

func main() {
	started := time.Now()
	os.Exit(program.RunWithSignals(func(ctx context.Context) int { return run(ctx, started, os.Args[1:], os.Stdout, os.Stderr) }))
}

func run(ctx context.Context, started time.Time, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case "wait":
			return wait(ctx, args[1:], stderr)
		case "mps-daemon":
			return mpsDaemon(ctx, args[1:], stderr)
		case "mps-uninstall":
			return mpsUninstall(args[1:], stdout, stderr)
		case nvml.ReaderCommand:
			if err := nvml.PrintDevice(ctx, args[1:], stdout); err != nil {
				return fail(stderr, exitFailed, err)
			}
			return 0
		case "check-config":
			return checkConfig(args[1:], stdout, stderr)
		case "devices":
			args = append([]string{"--dry-run"}, args[1:]...)
		case "shadow":
			args = append([]string{"--shadow"}, args[1:]...)
		}
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, exitUsage, err)
	case o.version:
		fmt.Fprintln(stdout, "gpu-device-plugin", version.String())
		return 0
	case o.dryRun:
		return o.runDevices(ctx, stdout, stderr)
	case o.shadow:
		return o.runShadow(ctx, started, stdout, stderr)
	}
	cfg := o.plugin(started, stderr)
	if cfg.Sockets, err = handover.Listeners(); err != nil {
		return fail(stderr, exitFailed, err)
	}
	sockets, err := plugin.Run(ctx, cfg)
	if errors.Is(err, plugin.ErrReplaced) && ctx.Err() == nil {
		err = o.reexec(sockets)
	}
	if err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "gpu-device-plugin: %v\n", err)
	return code
}
