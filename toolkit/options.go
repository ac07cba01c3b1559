package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/toolkit/install"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/setup"
)

const header = `Make containers on this node able to use its GPUs.

Usage:
  gpu-toolkit run          apply, then watch and repair until SIGTERM, which changes nothing
  gpu-toolkit apply        apply once
  gpu-toolkit plan         print, byte for byte, what apply would change
  gpu-toolkit uninstall    remove exactly what was installed; with --dry-run, print it

Examples:
  gpu-toolkit plan
  gpu-toolkit run --host-root /host
  gpu-toolkit apply --driver-root /run/nvidia/driver --cdi-output-dir /etc/cdi

Flags; the variable in brackets is read where a flag is not given:
`

const footer = `
Exit codes: 0 done; 1 failed, the reason is on standard error; 2 wrong use.
`

var commands = []string{"run", "apply", "plan", "uninstall"}

// environment names the variable of each flag.
var environment = map[string]string{
	"host-root":           "HOST_ROOT",
	"driver-root":         "NVIDIA_DRIVER_ROOT",
	"dev-root":            "NVIDIA_DEV_ROOT",
	"cdi-output-dir":      "CDI_OUTPUT_DIR",
	"toolkit-install-dir": "TOOLKIT_INSTALL_DIR",
	"state-dir":           "GPUREADY_STATE_DIR",
	"hook-program":        "GPUREADY_HOOK_PROGRAM",
	"runtime-socket":      "RUNTIME_SOCKET",
	"nri-socket":          "NRI_SOCKET",
	"namespace":           "POD_NAMESPACE",
	"listen":              "LISTEN_ADDRESS",
	"log-format":          "LOG_FORMAT",
}

type options struct {
	command       string
	config        setup.Config
	dryRun        bool
	listen        string
	logFormat     string
	help, version bool
	flags         *pflag.FlagSet
}

func (o *options) usage() string { return header + o.flags.FlagUsages() + footer }

func parse(args []string) (*options, error) {
	o := &options{flags: pflag.NewFlagSet("gpu-toolkit", pflag.ContinueOnError)}
	f := o.flags
	f.SortFlags = false
	f.StringVar(&o.config.HostRoot, "host-root", "/", "where the host's file system is seen")
	f.StringVar(&o.config.DriverRoot, "driver-root", "", "where on the host the driver's files are (default "+setup.ContainerRoot+" if a driver is there, else /)")
	f.StringVar(&o.config.DevRoot, "dev-root", "", "below which directory of the host /dev/nvidia* are (default the driver root if it has them, else /)")
	f.StringVar(&o.config.CDIDir, "cdi-output-dir", cdi.DynamicDir, "where on the host to write CDI specifications")
	f.StringVar(&o.config.InstallDir, "toolkit-install-dir", "/usr/local/nvidia/toolkit", "where on the host to install gpu-cdi-hook")
	f.StringVar(&o.config.StateDir, "state-dir", "/run/nvidia/gpuready", "where on the host components leave their state")
	f.StringVar(&o.config.HookProgram, "hook-program", "", "gpu-cdi-hook to install (default beside this program)")
	f.StringVar(&o.config.RuntimeSocket, "runtime-socket", "", "the container runtime's CRI socket on the host (default looked for where containerd, CRI-O, k3s, RKE2, k0s and MicroK8s have theirs)")
	f.StringVar(&o.config.NRISocket, "nri-socket", nri.DefaultSocket, "where on the host the container runtime lets plugins in (run only)")
	f.StringVar(&o.config.Namespace, "namespace", "", "namespace whose agents are given the GPUs by NRI (run only); empty: nobody is")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be changed and change nothing")
	f.StringVar(&o.listen, "listen", ":9403", "address of /healthz, /readyz and /metrics of run; empty: none")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.BoolVarP(&o.help, "help", "h", false, "print this")
	f.BoolVar(&o.version, "version", false, "print the version")
	config.Describe(f, environment)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.help || o.version {
		return o, nil
	}
	if err := config.Env(f, environment); err != nil {
		return nil, err
	}
	return o, o.complete()
}

// complete checks what was given and fills in what follows from it.
func (o *options) complete() error {
	if o.flags.NArg() != 1 || !slices.Contains(commands, o.flags.Arg(0)) {
		return fmt.Errorf("one command is wanted of %v", commands)
	}
	o.command = o.flags.Arg(0)
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("--log-format=%s: it is text or json", o.logFormat)
	}
	for name, p := range map[string]*string{
		"host-root": &o.config.HostRoot, "driver-root": &o.config.DriverRoot, "dev-root": &o.config.DevRoot,
		"cdi-output-dir": &o.config.CDIDir, "toolkit-install-dir": &o.config.InstallDir, "state-dir": &o.config.StateDir,
		"runtime-socket": &o.config.RuntimeSocket, "nri-socket": &o.config.NRISocket,
	} {
		if *p == "" && (name == "driver-root" || name == "dev-root" || name == "runtime-socket") {
			continue
		}
		if !path.IsAbs(*p) {
			return fmt.Errorf("--%s=%s: it must be an absolute path", name, *p)
		}
		*p = path.Clean(*p)
	}
	if o.config.InstallDir == "/" || o.config.CDIDir == "/" {
		return errors.New("--toolkit-install-dir and --cdi-output-dir cannot be the root directory")
	}
	if o.dryRun && (o.command == "run" || o.command == "apply") {
		o.command = "plan"
	}
	if o.config.HookProgram == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("where this program is: %w; give --hook-program", err)
		}
		o.config.HookProgram = filepath.Join(filepath.Dir(self), install.HookName)
	}
	return nil
}
