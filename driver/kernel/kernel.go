// Package kernel reads, checks, loads and unloads Linux kernel modules without kmod. It parses
// the information of modinfo(8), resolves dependencies, and checks parameters, which the kernel
// itself ignores when they are misspelt. It turns each error number of finit_module(2) and
// delete_module(2) into a Reason with the next action.
package kernel

import (
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Reasons for which modules cannot be loaded or unloaded.
const (
	ReasonKernelMismatch    gpu.Reason = "KernelMismatch"    // built for another kernel than the running one
	ReasonSignatureRejected gpu.Reason = "SignatureRejected" // the kernel requires a signature by a key that it trusts
	ReasonLockedDown        gpu.Reason = "LockedDown"        // lockdown, or a missing capability, forbids loading
	ReasonNoDevice          gpu.Reason = "NoDevice"          // the module found no GPU that it supports
	ReasonDependencyMissing gpu.Reason = "DependencyMissing" // a required module or symbol is missing
	ReasonInUse             gpu.Reason = "InUse"             // a process or another module uses it
	ReasonParameterUnknown  gpu.Reason = "ParameterUnknown"  // a parameter that the module does not have, or cannot take
	ReasonNouveauInTheWay   gpu.Reason = "NouveauInTheWay"   // another driver of the kernel holds the GPUs
	ReasonDeviceInitFailed  gpu.Reason = "DeviceInitFailed"  // the module's initialisation failed
	ReasonPlatform          gpu.Reason = "PlatformNotServed" // no driver belongs on this machine
)

// maxMessage bounds an Error's text, in bytes.
const maxMessage = 1024

// Error is the reason why a module could not be loaded or unloaded.
type Error struct {
	Reason  gpu.Reason
	Module  string // "nvidia_uvm"; "" if it concerns no single module
	Message string // one sentence with the next action
	Err     error  // the system call's, may be nil
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Err }

// newError builds an Error with a bounded message.
func newError(reason gpu.Reason, module string, err error, format string, args ...any) *Error {
	return &Error{reason, module, record.Clean(fmt.Sprintf(format, args...), maxMessage), err}
}

// NormalizeName returns a module's name in the kernel's spelling, from that of a file or a person:
// "nvidia_uvm" for "nvidia-uvm.ko.xz".
func NormalizeName(s string) string {
	s = s[strings.LastIndexByte(s, '/')+1:]
	if i := strings.Index(s, ".ko"); i > 0 {
		s = s[:i]
	}
	return strings.ReplaceAll(s, "-", "_")
}

// System is the running kernel. Tests replace the directories, and the calls where no module
// may be loaded.
type System struct {
	Proc  string // mount point of procfs: "/proc"
	Sys   string // mount point of sysfs: "/sys"
	Kmsg  string // the kernel's log: "/dev/kmsg"; "": it is not read
	Calls Calls
}

// Host is the System of the running kernel.
var Host = System{Proc: "/proc", Sys: "/sys", Kmsg: "/dev/kmsg", Calls: Running{}}

// Release returns the running kernel's release, as uname -r prints it.
func (s System) Release() (string, error) {
	u, err := s.readUname()
	return unix.ByteSliceToString(u.Release[:]), err
}

// Version returns the running kernel's version, as uname -v prints it: when it was built.
func (s System) Version() (string, error) {
	u, err := s.readUname()
	return unix.ByteSliceToString(u.Version[:]), err
}

func (s System) readUname() (u unix.Utsname, err error) {
	if err = s.Calls.Uname(&u); err != nil {
		err = fmt.Errorf("uname: %w", err)
	}
	return u, err
}

// readAtMost reads r to its end. It fails after limit bytes.
func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return data, err
}
