// Gpu-oci-runtime is an OCI runtime that adds the requested GPUs to containers and leaves
// everything else to a low-level runtime: runc, crun or youki. It accepts the same command
// line, edits the configuration of a container that is created, and then executes the
// low-level runtime. It is the runtime handler "nvidia", and Docker's runtime of that name.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

func main() {
	// The process lives for milliseconds; only a hostile bundle needs garbage collection.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(256 << 20)
	if isHelpRequest(os.Args) {
		fmt.Printf(help, version.Get("gpu-oci-runtime").Line())
		return
	}
	call := parseCall(os.Args[1:])
	err := run(os.Args, call)
	report(call, "error", err.Error())
	os.Exit(1) // as runtimes do
}

// help describes this program only. It contains this program's version because --version prints that
// of the low-level runtime, which containerd, CRI-O, Docker and Podman parse.
const help = `gpu-oci-runtime is an OCI runtime that adds the requested GPUs to containers.

Usage:
  gpu-oci-runtime [FLAGS] COMMAND ...  the command line of runc, crun or youki, which executes it
  gpu-oci-runtime --help               this text

It edits the configuration of a container that is created (create, run), and leaves everything
else to the low-level runtime: other commands, --version and features are passed on unchanged.
A container asks for GPUs by annotations with CDI names, or by NVIDIA_VISIBLE_DEVICES.

The settings are in gpu-oci-runtime.json beside the program: "runtimes" (default: runc, crun,
youki; the first one that exists is used), "spec-dirs", "annotation-prefixes",
"accept-nvidia-visible-devices-envvar-when-unprivileged" and
"accept-nvidia-visible-devices-as-volume-mounts". docs/oci-runtime.md describes them.

Exit codes:
  1  the GPUs cannot be added, or there is no low-level runtime; the message and the file of
     --log say why
  all others are those of the low-level runtime

Version: %s
`

// isHelpRequest reports whether a person asks for the help of this program. "help" with an argument,
// and --help after a command, are left to the low-level runtime.
func isHelpRequest(args []string) bool {
	if len(args) < 2 || filepath.Base(args[0]) == request.HookName {
		return false
	}
	return args[1] == "--help" || args[1] == "-h" || args[1] == "help" && len(args) == 2
}

// run executes the low-level runtime in place of this process. It only returns on error.
func run(args []string, call call) error {
	if filepath.Base(args[0]) == request.HookName {
		return errors.New("docker run --gpus needs this runtime as well: add --runtime=nvidia, or make it Docker's default-runtime")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s, err := request.ReadSettings(self)
	if call.Creates() {
		if err == nil {
			err = prepare(call, s)
		}
		if err != nil {
			return err
		}
	}
	info, err := os.Stat(self)
	if err != nil {
		return err
	}
	program, err := findRuntime(s.Runtimes, os.Getenv("PATH"), runtimeDirs, info)
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, append([]string{program}, args[1:]...), os.Environ()))
}
