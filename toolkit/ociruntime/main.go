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
