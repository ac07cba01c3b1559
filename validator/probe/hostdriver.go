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

// Limits of the files read, in bytes, well above real sizes: /proc/modules of 10,000 modules has 1 MB,
// and modules.dep has a line for each installed module.
const (
	maxModules = 4 << 20
	maxDep     = 64 << 20
	maxLine    = 4 << 10
)

// driverRoots returns the folders of a host below which its driver may be installed: that of
// distributions, and that of GKE.
func driverRoots() []string { return []string{"/", "/home/kubernetes/bin/nvidia"} }

// HostDriver describes the host's driver.
type HostDriver struct {
	Version string // of the host's driver, "" where it has none
	Root    string // the folder below which it is installed
	Why     string // the deciding fact, for people
}

// Exists reports whether the host has a driver of its own.
func (f HostDriver) Exists() bool { return f.Version != "" }

// String returns one line. Other programs parse that of a driver that exists.
func (f HostDriver) String() string {
	if f.Exists() {
		return fmt.Sprintf("HostDriver: %s at %s", f.Version, f.Root)
	}
	return "the host has no driver of its own: " + f.Why
}

// InspectHost finds out whether a host has an NVIDIA driver of its own: then no driver container
// may run there. The host's root file system is at root, its /proc and /sys at procSys. It needs a GPU,
// a device node or a privilege for none of this: it only reads files.
//
// A driver container's kernel module stays loaded after the container has ended, so a
// module alone proves nothing about the host. A loaded module counts only if its libraries are on
// the host, outside the container's root. A driver that is installed but not yet loaded, for
// example during boot, counts by its libraries and a module for this kernel.
func InspectHost(root, procSys *host.Root) (HostDriver, error) {
	loaded, version, err := loadedModule(procSys)
	if err != nil {
		return HostDriver{}, err
	}
	containerVersion, hasContainer := findContainer(root)
	found, own, err := findLibraries(root, hasContainer)
	switch {
	case err != nil:
		return HostDriver{}, err
	case !found && loaded:
		return HostDriver{Why: fmt.Sprintf("the kernel module nvidia, version %s, is loaded and no library of it is on the host: a driver container loaded it", cmp.Or(version, "unknown"))}, nil
	case !found:
		return HostDriver{Why: "there is no libnvidia-ml on it, and no kernel module nvidia is loaded"}, nil
	case loaded && hasContainer && (mayMatch(containerVersion, version) || !mayMatch(own.Version, version)):
		// The module matches the container's libraries, or at least not the host's.
		return HostDriver{Why: fmt.Sprintf("the kernel module nvidia, version %s, is that of the driver container that shows its root at %s", cmp.Or(version, "unknown"), check.ContainerRoot)}, nil
	case loaded && mayMatch(own.Version, version):
		return own.withVersion(version, "its kernel module is loaded and its libraries are there"), nil
	}
	installed, release, err := moduleInstalled(root, procSys)
	switch {
	case err != nil:
		return HostDriver{}, err
	case installed && loaded:
		return own.withVersion(version, "its kernel module is loaded, and its libraries are of another version: an upgrade that was not finished"), nil
	case installed:
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
func loadedModule(procSys *host.Root) (loaded bool, version string, err error) {
	data, err := procSys.ReadFile("/proc/modules", maxModules)
	if errors.Is(err, fs.ErrNotExist) && HasProc(procSys) {
		return false, "", nil // a kernel built without loadable modules
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
	text, err := procSys.ReadFile("/sys/module/nvidia/version", maxLine)
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
func findLibraries(root *host.Root, hasContainer bool) (found bool, f HostDriver, err error) {
	for _, dir := range driverRoots() {
		library, err := nvml.FindLibrary(root.Dir(), dir)
		if errors.Is(err, gpu.ErrNoDriver) {
			continue
		}
		if err != nil {
			return false, f, fmt.Errorf("look for the driver's libraries: %w", err)
		}
		if at, ok := root.Host(library); ok && hasContainer && strings.HasPrefix(at, check.ContainerRoot+"/") {
			continue // a link of the host leads into the container
		}
		return true, HostDriver{Version: libraryVersion(library), Root: dir}, nil
	}
	return false, f, nil
}

// findContainer reports whether a driver container exposes its root now, and returns the version
// of its libraries. Some hosts expose their own root there, by a link or a bind mount:
// that is not a container.
func findContainer(root *host.Root) (version string, found bool) {
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
func moduleInstalled(root, procSys *host.Root) (installed bool, release string, err error) {
	data, err := procSys.ReadFile("/proc/sys/kernel/osrelease", maxLine)
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
