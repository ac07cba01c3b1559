package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
)

const programName = "gpu-device-plugin"

// exitDiffers is the exit code of shadow --once when there are differences.
const exitDiffers = 3

// runProgram runs the command that the arguments name, run if they name none, and returns the
// exit code. started is the time at which the process started.
func runProgram(ctx context.Context, started time.Time, args []string, stdout, stderr io.Writer) int {
	c := &commands{started: started}
	command := func(name string, run func(ctx context.Context, args []string) error) program.Command {
		return program.Command{Name: name, Run: func(ctx context.Context, args []string, stdout, stderr io.Writer) error {
			c.stdout, c.stderr = stdout, stderr
			return run(ctx, args)
		}}
	}
	hidden := func(name string, run func(ctx context.Context, args []string) error) program.Command {
		hiddenCommand := command(name, run)
		hiddenCommand.Hidden = true
		return hiddenCommand
	}
	p := program.Program{
		Name:           programName,
		DefaultCommand: "run",
		Commands: []program.Command{
			command("run", c.runCommand),
			command("devices", c.devicesCommand),
			command("check-config", c.checkConfigCommand),
			command("shadow", c.shadowCommand),
			command("mps-daemon", c.mpsDaemonCommand),
			command("wait", c.waitCommand),
			hidden("mps-uninstall", c.mpsUninstallCommand),
			hidden(nvml.ReaderCommand, func(ctx context.Context, args []string) error { return nvml.PrintDevice(ctx, args, stdout) }),
		},
	}
	if program.HasBuiltin(args) { // else it is not needed
		p.Help = settings.Usage(runHelp)
	}
	return p.Run(ctx, args, stdout, stderr)
}

// commands are the commands of one process.
type commands struct {
	started        time.Time
	stdout, stderr io.Writer
}

// fail prints an error, which may have several lines. It returns the error for the caller to
// return: it ends the program with the exit code and prints nothing more.
func (c *commands) fail(code int, err error) error {
	fmt.Fprintf(c.stderr, "%s: %v\n", programName, err)
	return program.WithExitCode(code, program.ErrReported)
}

// parseSettings reads the settings of a command. done means that the command is to return
// err, which may be nil: help or version was printed, or the settings are invalid.
func (c *commands) parseSettings(mode settings.Mode, help string, args []string) (o *settings.Options, done bool, err error) {
	previous, err := takeData()
	if err == nil {
		o, err = settings.Parse(settings.Command{Mode: mode, Help: help, Previous: previous}, args, c.stdout)
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return nil, true, nil
	case err != nil:
		// Only the process of a container of its own: another plugin may run on the node.
		if o != nil && o.Mode == settings.Serve && os.Getpid() == 1 {
			if failed := plugin.ReportRefused(o.HostRoot, o.StateDir, err); failed != nil {
				fmt.Fprintf(c.stderr, "%s: write the state: %v\n", programName, failed)
			}
		}
		return nil, true, c.fail(program.Usage, err)
	case o.Version:
		fmt.Fprintln(c.stdout, version.Get(programName).Line())
		return nil, true, nil
	}
	return o, false, nil
}

// newLogger returns the logger of a component, whose format the settings have checked.
func (c *commands) newLogger(o *settings.Options, component string) *slog.Logger {
	log, err := program.NewLog(c.stderr, component, o.LogFormat, "")
	if err != nil {
		panic(err)
	}
	return log
}

// openDriver opens NVML where the driver is now. onFailure, which may be nil, is called with the
// code of each failed call of NVML. partitions has snapshots list what GPUs in MIG mode can be
// partitioned into. process is that of the earlier calls; nil: there were none.
func openDriver(place driver.Place, process *nvml.Process, log *slog.Logger, onFailure func(code string), partitions bool) (plugin.Opened, error) {
	root, path, err := place.Find()
	library := driver.StatLibrary(path)
	if err != nil {
		if place.RootOnly {
			return plugin.Opened{}, err
		}
		if place.Root == "" {
			root = "/" // NVML then searches the loader's path
		}
	}
	source, err := nvml.Open(nvml.Options{
		HostRoot: place.HostRoot, DriverRoot: root, Library: path, Process: process, Log: log, OnFailure: onFailure, Partitions: partitions,
		ReadOutside: nvml.NewOutsideReader(place.HostRoot, root), WatchDevices: host.WatchDevices,
	})
	if err != nil {
		return plugin.Opened{}, err
	}
	if source.Library() != path { // found by the loader, or newly installed
		library = driver.StatLibrary(source.Library())
	}
	return plugin.Opened{Source: source, Root: root, Library: library}, nil
}
