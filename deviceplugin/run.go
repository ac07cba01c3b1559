package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

const runHelp = `gpu-device-plugin advertises this node's NVIDIA GPUs and MIG devices to the
kubelet, as nvidia.com/gpu or as configured, and allocates them to containers.

Usage:
  gpu-device-plugin [run] [flags]
  gpu-device-plugin devices [flags]     print what would be advertised, and why a GPU is left out
  gpu-device-plugin check-config FILE   check a configuration file (see check-config --help)
  gpu-device-plugin shadow [flags]      run beside another device plugin, and report differences
  gpu-device-plugin mps-daemon [flags]  run the MPS daemons of shared GPUs (see mps-daemon --help)
  gpu-device-plugin wait [flags]        wait until containers get the GPUs (see wait --help)
  gpu-device-plugin completion SHELL    print a script that completes command lines: bash, zsh, fish
  gpu-device-plugin version             print the version

Examples:
  gpu-device-plugin
  gpu-device-plugin devices                  # what would be advertised
  gpu-device-plugin devices --mig-strategy mixed -o json
  gpu-device-plugin devices --config-file new.yaml
  gpu-device-plugin --serve dra              # find and watch the GPUs for gpu-dra-driver
  gpu-device-plugin shadow --once            # what would change on this node
  gpu-device-plugin --driver-root /opt/driver --listen=
  gpu-device-plugin --config-file /etc/gpuready/device-plugin.yaml
  gpu-device-plugin --config-file old.yaml --unknown-keys=warn   # warn of unknown keys, and serve
  gpu-device-plugin --config-dir /etc/gpuready/configs           # the node's label chooses a file
  gpu-device-plugin devices --config-dir configs --config mixed

Flags (command line before environment before configuration file):
%s
The configuration file is watched: a new one is checked and applied without a restart,
on SIGHUP too. If it is refused, the previous one stays in force.

Exit codes:
  0  ended on SIGTERM or SIGINT, or so that its container is created again with the
     current GPUs, or devices, --help, --version; shadow --once: no differences
  1  failed; the last line on stderr says why and what to do
  2  bad flag, environment variable or configuration file
  3  shadow --once: there are differences
`

// runCommand runs the plugin, or what --dry-run and --shadow ask for.
func (c *commands) runCommand(ctx context.Context, args []string) error {
	return c.runMode(ctx, settings.Serve, args)
}

// runMode parses the settings and runs mode, or the mode that a flag selects.
func (c *commands) runMode(ctx context.Context, mode settings.Mode, args []string) error {
	o, done, err := c.parseSettings(mode, runHelp, args)
	if done {
		return err
	}
	switch o.Mode {
	case settings.PrintDevices:
		return c.printDevices(ctx, o)
	case settings.Shadow:
		return c.runShadow(ctx, o)
	}
	return c.runPlugin(ctx, o)
}

// runPlugin runs the plugin until ctx ends.
func (c *commands) runPlugin(ctx context.Context, o *settings.Options) error {
	cfg, watcher := c.pluginConfig(o)
	var err error
	if cfg.Sockets, err = takeListeners(); err != nil {
		return c.fail(program.Failed, err)
	}
	sockets, err := plugin.Run(ctx, cfg)
	if errors.Is(err, plugin.ErrReplaced) && ctx.Err() == nil {
		err = execSelf(watcher, sockets)
	}
	if err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}

// pluginConfig returns the configuration of a plugin with the settings, and the watcher that
// delivers later ones.
func (c *commands) pluginConfig(o *settings.Options) (plugin.Config, *settings.Watcher) {
	log := c.newLogger(o, "deviceplugin")
	process := nvml.NewProcess()
	watcher := settings.NewWatcher(o, log)
	log.Info("starting", "precedence", "command line, environment, configuration file", "path", o.ConfigFile, "settings", strings.Join(o.NonDefaults, ", "),
		"socket", o.KubeletSocket, "pid", os.Getpid())
	o.LogIgnoredKeys(log)
	metrics := plugin.NewMetrics()
	partitions := o.MIG == nodestate.MIGDynamic
	return plugin.Config{
		HostRoot:       o.HostRoot,
		StateDir:       o.StateDir,
		KubeletSocket:  o.KubeletSocket,
		KubeletTimeout: o.KubeletTimeout,
		Listen:         o.Listen,
		PodResources:   o.PodResources,
		DCGMMetrics:    o.DCGMMetrics,
		Serve:          o.Serve,
		Partitions:     partitions,
		Settings:       pluginSettings(o),
		Follow: func(ctx context.Context, deliver func(plugin.Settings, error)) error {
			return watcher.WatchConfig(ctx, func(o *settings.Options, err error) {
				if err != nil {
					deliver(plugin.Settings{}, err)
					return
				}
				deliver(pluginSettings(o), nil)
			})
		},
		Driver: driver.Place{HostRoot: o.HostRoot},
		Open: func(place driver.Place) (plugin.Opened, error) {
			return openDriver(place, process, log, metrics.CountNVMLError, partitions)
		},
		NodeName: o.NodeName,
		NFDDir:   o.NFDDir,
		Injected: os.Getenv(injection.Variable),
		Log:      log,
		Metrics:  metrics,
		Started:  c.started,
	}, watcher
}

// pluginSettings returns the settings in the plugin's form. They have no Config while none is
// chosen.
func pluginSettings(o *settings.Options) plugin.Settings {
	return plugin.Settings{Config: o.Config, Health: o.Policy, Name: o.Name, Hash: o.Hash, Ignored: o.IgnoredKeys()}
}

// execSelf executes this program again. It hands over the sockets and the configuration in force,
// which may differ from its file by now. It returns only on failure.
func execSelf(w *settings.Watcher, sockets map[string]*os.File) error {
	data, err := w.HandoverData()
	if err != nil {
		return err
	}
	return execProgram("/proc/self/exe", sockets, data)
}
