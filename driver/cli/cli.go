// Package cli is the command line of gpu-driver, one file for each group of commands.
package cli

import (
	"context"
	"io"

	"github.com/gpuready/gpuready/internal/program"
)

// Exit codes besides those of every program.
const (
	exitRefused  = 3 // the driver cannot be loaded, or unloaded, for one of the reasons
	exitNotReady = 4 // of probe and status: the driver is not ready
)

const exitCodes = `
Exit codes:
  0  done; of probe and status: the driver is ready
  1  failed; the reason is on standard error
  2  wrong use of the command line
  3  the driver cannot be built, loaded or unloaded: BuildFailed, KernelMismatch,
     SignatureRejected, LockedDown, NoDevice, NouveauInTheWay, DependencyMissing, InUse,
     ParameterUnknown, DeviceInitFailed, SourceUnreachable, ToolkitBroken or
     PlatformNotServed, as the last line says
  4  of probe and status: the driver is not ready
`

const help = `gpu-driver installs NVIDIA's kernel modules and user space on a node.

Usage:
  gpu-driver COMMAND [flags]

Commands:
  run       load the driver, mount its root, and stay until SIGTERM: the command of the
            DaemonSet (nvidia-driver init is the same)
  load      load the driver, mount its root, and exit
  unload    unload the driver, if nobody uses it
  check     print what would be loaded, in which order and with which parameters, and
            whether the kernel would reject it; change nothing
  build     compile the driver's modules for a kernel, into a folder laid out like an image
  push      append built modules to the driver's image, in a registry
  share     copy this program and the driver's sources to the folder of another container
  status    print the driver's state
  probe     exit with 0 if the driver is ready, for probes of Kubernetes
  modinfo   print what a module says of itself: version, kernel, signer, parameters
  version   print the version
  completion  print a script that completes command lines: bash, zsh or fish

Examples:
  gpu-driver check
  gpu-driver run --kernel-module-type open
  gpu-driver modinfo /driver/lib/modules/*/kernel/drivers/video/nvidia.ko

gpu-driver COMMAND --help lists the flags of a command, with their environment variables.
` + exitCodes

// Main runs the program and returns its exit code. The names under which NVIDIA's operator
// calls the program of a driver container are commands, too.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "gpu-driver", Help: help,
		Commands: []program.Command{
			{Name: "run", Run: runCommand},
			{Name: "init", Run: runCommand, Hidden: true},
			{Name: "nv-ctr-run-with-dtk", Run: runInPod, Hidden: true},
			{Name: "dtk-build-driver", Run: sideCar, Hidden: true},
			{Name: "reload_nvidia_peermem", Run: reloadPeermem, Hidden: true},
			{Name: "probe_nvidia_peermem", Run: probePeermem, Hidden: true},
			{Name: "load", Run: loadCommand},
			{Name: "unload", Run: unloadCommand},
			{Name: "check", Run: checkCommand},
			{Name: "build", Run: buildModules},
			{Name: "push", Run: pushCommand},
			{Name: "share", Run: shareCommand},
			{Name: "status", Run: statusCommand},
			{Name: "probe", Run: probeCommand},
			{Name: "modinfo", Run: modinfoCommand},
		},
	}.Run(ctx, args, stdout, stderr)
}
