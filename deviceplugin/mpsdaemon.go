package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/version"
)

const mpsHelp = `gpu-device-plugin mps-daemon runs nvidia-cuda-mps-control of the driver root, once
for each resource that the configuration shares by MPS, with the limits of memory and
threads that follow from its replicas. It keeps them running, checks that they
serve, and records in its state file which GPUs may be allocated.

It accepts the configuration file, the flags and the variables of the device plugin,
and uses those that define the resources. It has to be privileged: it sets
the GPUs' compute mode to EXCLUSIVE_PROCESS, restores DEFAULT when it ends, and runs
the driver's programs in the driver's root.

Usage:
  gpu-device-plugin mps-daemon [flags]

Example:
  gpu-device-plugin mps-daemon --config-file /etc/gpuready/device-plugin.yaml

Flags (command line before environment before configuration file):
%s
Exit codes:
  0  ended on SIGTERM or SIGINT, --help or --version
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
`

const mpsUninstallHelp = `gpu-device-plugin mps-uninstall removes the mounts of mps-daemon on the host,
<mps-root>/shm and <mps-root>/<resource>/log. Containers that share GPUs by MPS keep
theirs; end them first.

Usage:
  gpu-device-plugin mps-uninstall [--host-root /host] [--mps-root /run/nvidia/mps]

It accepts the flags of the device plugin but uses only these two:
%s
Exit codes:
  0  the mounts are removed, or there were none
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
`

// mpsUninstall runs the mps-uninstall subcommand.
func mpsUninstall(args []string, stdout, stderr io.Writer) int {
	o, err := (&options{help: mpsUninstallHelp, component: "mps"}).parse(args, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, exitUsage, err)
	case o.version:
		fmt.Fprintln(stdout, "gpu-device-plugin", version.String())
		return 0
	case o.config == nil:
		return fail(stderr, exitUsage, errors.New("mps-uninstall uses --mps-root, not named configurations: remove --config-dir (CONFIG_FILE_SRCDIR)"))
	}
	removed, err := mps.Unmount(o.hostRoot, mps.Root(o.config))
	for _, at := range removed {
		fmt.Fprintln(stdout, "unmounted", at)
	}
	if err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

// mpsDaemon runs the mps-daemon subcommand.
func mpsDaemon(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := (&options{help: mpsHelp, component: "mps"}).parse(args, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, exitUsage, err)
	case o.version:
		fmt.Fprintln(stderr, "gpu-device-plugin", version.String())
		return 0
	}
	log := o.logger(stderr)
	log.Info("starting", "path", o.configFile, "settings", strings.Join(o.nonDefaults, ", "))
	o.watcher = newConfigWatcher(o, log)
	err = mps.Run(ctx, mps.Config{
		HostRoot: o.hostRoot,
		StateDir: o.stateDir,
		Listen:   o.listen,
		Settings: o.config,
		Follow: func(ctx context.Context, deliver func(*config.Config, error)) error {
			return o.watcher.watch(ctx, func(s plugin.Settings, err error) { deliver(s.Config, err) })
		},
		Driver: driver.Place{HostRoot: o.hostRoot},
		Open: func(place driver.Place) (mps.Opened, error) {
			opened, err := o.open(place, log, nil)
			if err != nil {
				return mps.Opened{}, err
			}
			return mps.Opened{Source: opened.Source.(*nvml.Source), Root: opened.Root, Library: opened.Library}, nil
		},
		Log: log,
	})
	if errors.Is(err, mps.ErrReplaced) && ctx.Err() == nil {
		log.Info("executing this program again", "message", err.Error())
		err = o.reexec(nil)
	}
	if err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}
