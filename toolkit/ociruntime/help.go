package main

import (
	"path/filepath"

	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

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
"accept-nvidia-visible-devices-as-volume-mounts". docs/injection.md describes them.

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
