package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/program"
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
<mps-root>/shm and <mps-root>/<resource>/log, and its CDI specification. Containers that
share GPUs by MPS keep theirs; end them first.

Usage:
  gpu-device-plugin mps-uninstall [--host-root /host] [--mps-root /run/nvidia/mps]

It accepts the flags of the device plugin but uses only these two:
%s
Exit codes:
  0  the mounts are removed, or there were none
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
`

// mpsUninstallCommand removes the mounts of mps-daemon.
func (c *commands) mpsUninstallCommand(_ context.Context, args []string) error {
	o, done, err := c.parseSettings(settings.Serve, mpsUninstallHelp, args)
	switch {
	case done:
		return err
	case o.Config == nil:
		return c.fail(program.Usage, errors.New("mps-uninstall uses --mps-root, not named configurations: remove --config-dir (CONFIG_FILE_SRCDIR)"))
	}
	removed, err := mps.Unmount(o.HostRoot, mps.Root(o.Config))
	for _, at := range removed {
		fmt.Fprintln(c.stdout, "unmounted", at)
	}
	if err == nil {
		err = mps.RemoveInjection(o.HostRoot)
	}
	if err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}

// mpsDaemonCommand runs the MPS control daemons until ctx ends.
func (c *commands) mpsDaemonCommand(ctx context.Context, args []string) error {
	o, done, err := c.parseSettings(settings.Serve, mpsHelp, args)
	if done {
		return err
	}
	log := c.newLogger(o, "mps")
	process := nvml.NewProcess()
	log.Info("starting", "path", o.ConfigFile, "settings", strings.Join(o.NonDefaults, ", "))
	watcher := settings.NewWatcher(o, log)
	err = mps.Run(ctx, mps.Config{
		HostRoot: o.HostRoot,
		StateDir: o.StateDir,
		Listen:   o.Listen,
		Settings: o.Config,
		Follow: func(ctx context.Context, deliver func(*config.Config, error)) error {
			return watcher.WatchConfig(ctx, func(o *settings.Options, err error) {
				if err != nil {
					deliver(nil, err)
					return
				}
				deliver(o.Config, nil)
			})
		},
		Driver: driver.Place{HostRoot: o.HostRoot},
		Open: func(place driver.Place) (mps.Opened, error) {
			opened, err := openDriver(place, process, log, nil, false)
			if err != nil {
				return mps.Opened{}, err
			}
			return mps.Opened{Source: opened.Source.(*nvml.Source), Root: opened.Root, Library: opened.Library}, nil
		},
		Log: log,
	})
	if errors.Is(err, mps.ErrReplaced) && ctx.Err() == nil {
		log.Info("executing this program again", "message", err.Error())
		err = execSelf(watcher, nil)
	}
	if err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}
