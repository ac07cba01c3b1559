package kernel

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// moduleInitCompressed is MODULE_INIT_COMPRESSED_FILE (include/uapi/linux/module.h),
// Linux 5.17: the kernel itself uncompresses the file.
const moduleInitCompressed = 4

// Load loads one module with its parameters. It returns nil if the module is loaded already.
func (s System) Load(m Module, params []Param) error {
	f, err := m.Root.OpenFile(m.Path)
	if err != nil {
		return newError(ReasonDependencyMissing, m.Name, err, "load %s: %v", m.Name, err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	words := make([]string, len(params))
	for i, p := range params {
		words[i] = p.String()
	}
	log := s.openLog()
	defer log.close()
	err = s.insertModule(f, m.Path, strings.Join(words, " "))
	if err == nil || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return s.explainLoad(m, err, log.linesAbout(m.Name))
}

// insertModule passes a module to the kernel, compressed if the kernel can uncompress it.
func (s System) insertModule(f *os.File, name, params string) error {
	if filepath.Ext(name) == ".ko" {
		return s.Calls.FinitModule(int(f.Fd()), params, 0)
	}
	if s.canUncompress(filepath.Ext(name)) {
		if err := s.Calls.FinitModule(int(f.Fd()), params, moduleInitCompressed); !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r, size, err := openUncompressed(f, name)
	if err != nil {
		return err
	}
	data := make([]byte, size)
	if _, err := r.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return s.Calls.InitModule(data, params)
}

// canUncompress reports whether the kernel can uncompress modules with this file extension.
func (s System) canUncompress(extension string) bool {
	data, err := os.ReadFile(filepath.Join(s.Sys, "module/compression"))
	kind := map[string]string{".gz": "gzip", ".xz": "xz", ".zst": "zstd"}[extension]
	return err == nil && kind != "" && strings.TrimSpace(string(data)) == kind
}

// explainLoad turns the error number of init_module(2) or finit_module(2) into a reason. lines holds the kernel's
// log messages about the module.
func (s System) explainLoad(m Module, err error, lines []string) error {
	quote := ""
	if len(lines) > 0 {
		quote = "; the kernel says: " + strings.Join(lines, " / ")
	}
	release, _ := s.Release()
	switch {
	case errors.Is(err, unix.EKEYREJECTED), errors.Is(err, unix.ENOKEY), errors.Is(err, unix.EBADMSG):
		return newError(ReasonSignatureRejected, m.Name, err, "%s: %s", m, s.ReadTrust().explainRejection(m.Signature))
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return newError(ReasonLockedDown, m.Name, err, "%s: %s%s", m, s.ReadTrust().explainLockdown(m.Signature), quote)
	case errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EINVAL) && isForOtherKernel(lines):
		return newError(ReasonKernelMismatch, m.Name, err,
			"%s is built for kernel %s and cannot be loaded by %s%s; use the driver's image for this kernel, or build it here", m, m.Release(), release, quote)
	case errors.Is(err, unix.ENOENT):
		return newError(ReasonDependencyMissing, m.Name, err,
			"load %s: the kernel lacks a symbol or module that it needs%s; make the kernel's own modules visible (/lib/modules)", m.Name, quote)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		advice := "on a node with a GPU,"
		if bound := s.describeBindings(); bound != "" {
			advice = "on the PCI bus " + bound + "; if another driver has a GPU, that is in the way, else"
		}
		return newError(ReasonNoDevice, m.Name, err,
			"load %s %s: it finds no device that it supports%s; %s choose a driver version and kernelModuleType that support it", m.Name, m.Version, quote, advice)
	}
	return newError(ReasonDeviceInitFailed, m.Name, err, "load %s: its initialisation failed: %v%s", m.Name, err, quote)
}

// isForOtherKernel reports whether the kernel logged that the module was built for another kernel, by its
// version magic or by the versions of its symbols: the release may be the same, with another configuration.
func isForOtherKernel(lines []string) bool {
	for _, line := range lines {
		if strings.Contains(line, "disagrees about version of symbol") || strings.Contains(line, "version magic") {
			return true
		}
	}
	return false
}

// CheckRelease rejects a module that was built for another kernel than release.
func CheckRelease(m Module, release string) error {
	if m.Release() == release {
		return nil
	}
	return newError(ReasonKernelMismatch, m.Name, nil,
		"%s is built for kernel %s, this node runs %s; use the driver's image for this kernel, or build it here", m, m.Release(), release)
}

// Unload removes one module. It returns nil if the module is not loaded.
func (s System) Unload(name string) error {
	err := s.Calls.DeleteModule(name, unix.O_NONBLOCK)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EBUSY):
		return s.explainBusy(name, err)
	case errors.Is(err, unix.EPERM):
		return newError(ReasonLockedDown, name, err, "unload %s: %v; the container needs CAP_SYS_MODULE: run it privileged", name, err)
	}
	return newError(ReasonDeviceInitFailed, name, err, "unload %s: %v", name, err)
}

// explainBusy names the users of a module.
func (s System) explainBusy(name string, err error) error {
	loaded, listErr := s.ReadLoaded()
	if l := loaded[name]; listErr == nil && len(l.Holders) > 0 {
		return newError(ReasonInUse, name, err, "module %s is in use by the module %s; unload that first", name, strings.Join(l.Holders, ", "))
	}
	return s.explainUsers(name, err)
}

// explainUsers names the processes that have the driver's devices open.
func (s System) explainUsers(name string, err error) error {
	users := s.FindUsers()
	if len(users) == 0 {
		return newError(ReasonInUse, name, err, "module %s is in use, but no visible process has its devices open; run this container with hostPID: true to identify it", name)
	}
	return newError(ReasonInUse, name, err, "module %s is in use by %s; end it first", name, describeUsers(users))
}
