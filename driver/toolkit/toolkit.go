// Package toolkit builds the driver's modules in OpenShift's Driver Toolkit: a side-car
// container that has the compiler and the headers of the node's kernel, and shares a folder
// with the driver container.
//
// The files in the shared folder are those of NVIDIA's driver containers, with two
// extensions. Each result carries the digest of its request, which distinguishes it from
// leftovers of earlier ones. The file driver_failed ends a wait that NVIDIA's containers
// never end.
//
//	driver container (Client)                   side-car (Builder)
//	copies the program and the sources
//	writes env, then dir_prepared          →    reads env
//	                                       ←    driver_build_started, again while it builds
//	copies and verifies modules/           ←    modules/, then driver_built
//	                                       ←    or driver_failed, or driver_toolkit_broken
//
// The driver container (Client) does not trust the side-car (Builder): it follows no link
// out of the folder, waits for no pipe, and verifies copies that the side-car cannot reach.
//
// NVIDIA's containers leave these files empty, and either side works with one of theirs.
// For Client, an empty driver_build_started or driver_built is a response to the last
// request, since Prepare has removed older ones. Without a list of digests, Client finds
// the modules by name and verifies their own metadata. For Builder, an empty dir_prepared
// is a request of NVIDIA's driver container: see nvidia.go.
package toolkit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Dir is the mount point of the shared folder in both containers.
const Dir = "/mnt/shared-nvidia-driver-toolkit"

// ReasonToolkitBroken is the reason of a kernel.Error where the side-car cannot build.
const ReasonToolkitBroken gpu.Reason = "ToolkitBroken" // there is no side-car, or it is not of this node's kernel, or it breaks the protocol

// The files in the shared folder.
const (
	programName  = "ocp_dtk_entrypoint" // the pod runs it in the side-car
	sourcesName  = "sources"
	envName      = "env"
	preparedName = "dir_prepared"
	startedName  = "driver_build_started"
	brokenName   = "driver_toolkit_broken"
	failedName   = "driver_failed"
	builtName    = "driver_built"
	modulesName  = "modules"
)

// markers holds the files that tell the containers of other modules that theirs were built.
var markers = map[string]string{"nvidia-fs": "nvidia_fs_built", "gdrdrv": "gdrcopy_built"}

// Bounds on files of the shared folder.
const (
	maxResponse = 64 << 10
	maxMessage  = 1024
	maxModule   = 256 << 20 // bytes of a module; NVIDIA's largest without symbols has 65 MB
	maxModules  = 32
)

// Request describes the modules to build.
type Request struct {
	Release string   // of the kernel
	Version string   // of the driver
	Kind    string   // "open" or "proprietary"
	Modules []string // "nvidia-uvm"
	Program string   // digest of the program; Prepare sets it
	Sources string   // digest of the sources; Prepare sets it where it is empty
}

// The variables of a Request in the file env. The first three are NVIDIA's.
const (
	envVersion = "DRIVER_VERSION"
	envRelease = "KERNEL_VERSION"
	envKind    = "KERNEL_MODULE_TYPE"
	envModules = "GPUREADY_MODULES"
	envProgram = "GPUREADY_PROGRAM"
	envSources = "GPUREADY_SOURCES"
)

// envFile returns the variables of the file env.
func (r Request) envFile() map[string]string {
	return map[string]string{
		envVersion: r.Version, envRelease: r.Release, envKind: r.Kind,
		envModules: strings.Join(r.Modules, " "), envProgram: r.Program, envSources: r.Sources,
	}
}

// newRequest is the inverse of env. It rejects incomplete requests.
func newRequest(env map[string]string) (Request, error) {
	r := Request{
		Version: env[envVersion], Release: env[envRelease], Kind: env[envKind],
		Modules: strings.Fields(env[envModules]), Program: env[envProgram], Sources: env[envSources],
	}
	return r, r.checkComplete()
}

// checkComplete rejects an incomplete request.
func (r Request) checkComplete() error {
	if r.Release == "" || r.Version == "" || len(r.Modules) == 0 || len(r.Modules) > maxModules {
		return fmt.Errorf("%s lacks the kernel, the driver version, or the modules", envName)
	}
	for _, name := range r.Modules {
		if !isModuleName(name) {
			return fmt.Errorf("%s: %q is not the name of a module", envName, record.Clean(name, 100))
		}
	}
	return nil
}

// isModuleName reports whether a module can have the name.
func isModuleName(name string) bool {
	return name != "" && len(name) < 56 && // MODULE_NAME_LEN of Linux
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// requestID returns the digest of a request, which identifies its responses.
func requestID(env string) string { return folder.NewDigest("toolkit", env).String() }

// response is the content of driver_build_started, driver_built and driver_failed. NVIDIA's
// side-car leaves these files empty.
type response struct {
	Empty   bool              `json:"-"`
	ID      string            `json:"id"`
	Beat    int               `json:"beat,omitempty"`    // driver_build_started: incremented while the build runs
	Modules map[string]string `json:"modules,omitempty"` // driver_built: SHA-256 by file name
	Reason  gpu.Reason        `json:"reason,omitempty"`  // driver_failed
	Message string            `json:"message,omitempty"` // driver_failed
}

// readResponse reads a file of the shared folder, and reports whether it is a response to a
// request. Any other content is left over from another container, or not complete yet.
func readResponse(dir, name, id string) (response, bool, error) {
	data, err := record.Read(filepath.Join(dir, name), maxResponse)
	if errors.Is(err, fs.ErrNotExist) {
		return response{}, false, nil
	}
	if err != nil {
		return response{}, false, err
	}
	if len(data) == 0 {
		return response{Empty: true}, false, nil
	}
	var a response
	return a, json.Unmarshal(data, &a) == nil && a.ID == id, nil
}

func writeResponse(dir, name string, a response) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return record.Write(filepath.Join(dir, name), append(data, '\n'))
}

// brokenError returns an Error with ReasonToolkitBroken: the side-car cannot build, whatever the
// request.
func brokenError(err error, format string, args ...any) *kernel.Error {
	return &kernel.Error{Reason: ReasonToolkitBroken, Message: record.Clean(fmt.Sprintf(format, args...), maxMessage), Err: err}
}

// explainFull adds advice to err where the shared folder is full.
func explainFull(dir string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return brokenError(err, "%s, which is shared with the Driver Toolkit, is full: %v; 1 GiB is needed: raise sizeLimit of the pod's volume, or free space on the node", dir, err)
	}
	return err
}

// reasons holds the reasons that driver_failed may have.
var reasons = map[gpu.Reason]bool{build.ReasonBuildFailed: true, ReasonToolkitBroken: true}

// removeAll removes files and folders of the shared folder by name. It removes links, and
// does not follow them.
func removeAll(root *os.Root, names ...string) error {
	var err error
	for _, name := range names {
		err = errors.Join(err, root.RemoveAll(name))
	}
	return err
}

// parseID returns the digest in dir_prepared.
func parseID(data []byte) (string, error) {
	var a response
	if err := json.Unmarshal(data, &a); err != nil || a.ID == "" {
		return "", fmt.Errorf("%s is not in the format of the driver container; the two containers are of different versions", preparedName)
	}
	return a.ID, nil
}
