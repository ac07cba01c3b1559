package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/program"
)

const exitHelp = `
Exit codes:
  0  ended on SIGTERM or SIGINT, or devices, --help, version
  1  failed; the last line on stderr says why and what to do
  2  bad flag or environment variable
`

const usage = `gpu-dra-driver offers this node's GPUs and MIG devices to Kubernetes as ResourceSlices, and
prepares the ResourceClaims of its pods (Dynamic Resource Allocation).

It finds no GPU itself: it reads the state of gpu-device-plugin, which must run with --serve=dra.

Usage:
  gpu-dra-driver [run] [flags]     publish ResourceSlices and serve the kubelet
  gpu-dra-driver devices [flags]   print what would be published
  gpu-dra-driver COMMAND --help    flags, examples and environment of a command
  gpu-dra-driver completion SHELL  print a script that completes command lines: bash, zsh or fish
  gpu-dra-driver version           print the version
`

// runProgram runs gpu-dra-driver with the arguments after its name, and returns its exit code.
func runProgram(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "gpu-dra-driver", Help: usage + exitHelp, DefaultCommand: "run",
		Commands: []program.Command{{Name: "run", Run: runDriver}, {Name: "devices", Run: printDevices}},
	}.Run(ctx, args, stdout, stderr)
}

// options holds the flags that the commands share.
type options struct {
	flags                                    *program.Flags
	hostRoot, stateDir, nodeName, kubeletDir string
}

func newOptions(command, usage string, stdout io.Writer) *options {
	o := &options{flags: program.NewFlags("gpu-dra-driver "+command, usage, exitHelp, stdout)}
	f := o.flags
	f.StringVar(&o.nodeName, "node-name", "", "name of this Node, and of its pool of devices (default: the host's name)")
	f.StringVar(&o.hostRoot, "host-root", "/", "where the host's root is seen")
	f.StringVar(&o.stateDir, "state-dir", "/run/nvidia/gpuready", "folder of the components' states, on the host")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "folder of the kubelet, with plugins and plugins_registry; the same path for the kubelet and this program")
	f.Env["kubelet-dir"] = "KUBELET_DIR"
	f.Env["node-name"], f.Env["host-root"], f.Env["state-dir"] = "NODE_NAME", "HOST_ROOT", "GPUREADY_STATE_DIR"
	return o
}

// read reads command line and environment.
func (o *options) read(args []string, paths ...string) error {
	if err := o.flags.Read(args); err != nil {
		return err
	}
	if err := o.flags.RefuseArgs(); err != nil {
		return err
	}
	for _, name := range append(paths, "host-root", "state-dir", "kubelet-dir") {
		if value := o.flags.Lookup(name).Value.String(); !filepath.IsAbs(value) {
			return program.UsageErrorf("--%s %q: want an absolute path", name, value)
		}
	}
	if o.nodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return program.UsageErrorf("--node-name is not set, and the host's name cannot be read: %w", err)
		}
		o.nodeName = name
	}
	return nil
}
