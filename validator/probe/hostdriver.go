package probe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/validator/check"
)

// Bounds of the files read: 10,000 modules are 1 MB, and a line each in modules.dep.
const (
	maxModules = 4 << 20
	maxDep     = 64 << 20
	maxLine    = 4 << 10
)

// driverRoots returns the driver roots of a host: that of distributions, and that of GKE.
func driverRoots() []string { return []string{"/", "/home/kubernetes/bin/nvidia"} }

// HostDriver describes the host's driver.
type HostDriver struct {
	Version string // of the host's driver, "" where it has none
	Root    string // its root, on the host
	Why     string // the deciding fact, for people
}

// Is reports whether the host has a driver of its own.
func (f HostDriver) Is() bool { return f.Version != "" }

// String returns the line that other programs parse.
func (f HostDriver) String() string {
	if f.Is() {
		return fmt.Sprintf("HostDriver: %s at %s", f.Version, f.Root)
	}
	return "the host has no driver of its own: " + f.Why
}

// InspectHost finds out whether a host has an NVIDIA driver of its own, which no driver
// container may touch. The host's root file system is at root, its /proc and /sys at kernel.
// It only reads files: it needs no GPU, no device node and no other privilege.
//
// A driver container's kernel module stays loaded after the container has ended, so a
// module alone proves nothing about the host. It counts together with its libraries, on the
// host and not in the container's root. A driver that is installed but not yet loaded, for
// example during boot, counts by its libraries and a module for this kernel.
func InspectHost(root, kernel *host.Root) (HostDriver, error) {
	loaded, version, err := loadedModule(kernel)
	if err != nil {
		return HostDriver{}, err
	}
	its, contained := findContainer(root)
	found, own, err := findLibraries(root, contained)
	switch {
	case err != nil:
		return HostDriver{}, err
	case !found && loaded:
		return HostDriver{Why: fmt.Sprintf("the kernel module nvidia, version %s, is loaded and no library of it is on the host: a driver container loaded it", cmp.Or(version, "unknown"))}, nil
	case !found:
		return HostDriver{Why: "there is no libnvidia-ml on it, and no kernel module nvidia is loaded"}, nil
	case loaded && contained && (mayMatch(its, version) || !mayMatch(own.Version, version)):
		return HostDriver{Why: fmt.Sprintf("the kernel module nvidia, version %s, is that of the driver container that shows its root at %s", cmp.Or(version, "unknown"), check.ContainerRoot)}, nil
	case loaded && mayMatch(own.Version, version):
		return own.withVersion(version, "its kernel module is loaded and its libraries are there"), nil
	}
	there, release, err := moduleInstalled(root, kernel)
	switch {
	case err != nil:
		return HostDriver{}, err
	case there && loaded:
		return own.withVersion(version, "its kernel module is loaded, and its libraries are of another version: an upgrade that was not finished"), nil
	case there:
		return own.withVersion("", "it is installed for kernel "+release+" and not loaded yet"), nil
	}
	return HostDriver{Why: fmt.Sprintf("there are libraries of version %s below %s, and no kernel module nvidia for kernel %s", cmp.Or(own.Version, "unknown"), own.Root, release)}, nil
}

// mayMatch reports whether libraries and module may belong together; "" is an unknown version.
func mayMatch(library, module string) bool { return library == "" || module == "" || library == module }

// withVersion returns the host's driver with the version of the loaded module, or else of its
// libraries.
func (f HostDriver) withVersion(module, why string) HostDriver {
	f.Version, f.Why = cmp.Or(module, f.Version, "unknown"), why
	return f
}

// HasProc reports whether a root has the kernel's /proc.
func HasProc(root *host.Root) bool {
	_, err := root.Stat("/proc/version")
	return err == nil
}

// loadedModule reports whether the kernel module nvidia is loaded, and returns its version, "" if
// the module shows none.
func loadedModule(kernel *host.Root) (loaded bool, version string, err error) {
	data, err := kernel.ReadFile("/proc/modules", maxModules)
	if errors.Is(err, fs.ErrNotExist) && HasProc(kernel) {
		return false, "", nil // a kernel without modules
	}
	if err != nil {
		return false, "", fmt.Errorf("cannot read the loaded kernel modules: %w; mount the host's root, with its /proc, at --host-root", err)
	}
	for line := range strings.Lines(string(data)) {
		loaded = loaded || strings.HasPrefix(line, "nvidia ")
	}
	if !loaded {
		return false, "", nil
	}
	text, err := kernel.ReadFile("/sys/module/nvidia/version", maxLine)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, "", err
	}
	return true, strings.TrimSpace(string(text)), nil
}

var versionPattern = regexp.MustCompile(`\.so\.(\d{2,4}(?:\.\d{1,4}){1,3})$`)

func libraryVersion(library string) string {
	if m := versionPattern.FindStringSubmatch(library); m != nil {
		return m[1]
	}
	return ""
}

// findLibraries finds a driver's libraries on the host, except for those of a driver container.
func findLibraries(root *host.Root, contained bool) (is bool, f HostDriver, err error) {
	for _, dir := range driverRoots() {
		library, err := nvml.FindLibrary(root.Dir(), dir)
		if errors.Is(err, gpu.ErrNoDriver) {
			continue
		}
		if err != nil {
			return false, f, fmt.Errorf("look for the driver's libraries: %w", err)
		}
		if at, ok := root.Host(library); ok && contained && strings.HasPrefix(at, check.ContainerRoot+"/") {
			continue // a link of the host leads into the container
		}
		return true, HostDriver{Version: libraryVersion(library), Root: dir}, nil
	}
	return false, f, nil
}

// findContainer reports whether a driver container exposes its root now, and returns the version
// of its libraries. Some hosts expose their own root there, by a link or a bind mount.
func findContainer(root *host.Root) (version string, is bool) {
	library, err := nvml.FindLibrary(root.Dir(), check.ContainerRoot)
	if err != nil {
		return "", false
	}
	own, err := root.Stat("/")
	if err != nil {
		return "", false
	}
	its, err := root.Stat(check.ContainerRoot)
	return libraryVersion(library), err == nil && !os.SameFile(own, its)
}

var moduleFile = regexp.MustCompile(`(?m)^(?:\S*/)?nvidia\.ko(?:\.\w+)?:`)

// moduleInstalled reports whether modprobe would find the module for the running kernel.
func moduleInstalled(root, kernel *host.Root) (is bool, release string, err error) {
	data, err := kernel.ReadFile("/proc/sys/kernel/osrelease", maxLine)
	if err != nil {
		return false, "", fmt.Errorf("cannot read the version of the running kernel: %w", err)
	}
	release = strings.TrimSpace(string(data))
	dep, err := root.ReadFile(path.Join("/lib/modules", path.Base(release), "modules.dep"), maxDep)
	if errors.Is(err, fs.ErrNotExist) {
		return false, release, nil
	}
	if err != nil {
		return false, release, fmt.Errorf("cannot read the installed kernel modules: %w", err)
	}
	return moduleFile.Match(dep), release, nil
}
