// Package hostdriver tells whether a node's host has an NVIDIA driver of its own, so
// that no driver container is to touch it. It reads files: it needs no GPU, no device
// node and no right but to read.
//
// What a driver container loads stays loaded when the container goes, so a kernel
// module alone says nothing of the host: it counts with the libraries that belong to it,
// on the host and not in the container's root. A driver that is installed and not yet
// loaded, as while a node boots, counts by its libraries and a module for this kernel.
package hostdriver

import (
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

// Bounds of what is read: 10,000 modules are 1 MB, and a line each in modules.dep.
const (
	maxModules = 4 << 20
	maxDep     = 64 << 20
	maxLine    = 4 << 10
)

// roots of drivers of a host: where distributions install them, and where GKE does.
func roots() []string { return []string{"/", "/home/kubernetes/bin/nvidia"} }

// Found is what there is.
type Found struct {
	Version string // of the host's driver, "" where it has none
	Root    string // of it, on the host
	Why     string // for people: what decided
}

// Is says whether the host has a driver of its own.
func (f Found) Is() bool { return f.Version != "" }

// String is the one line by which others know.
func (f Found) String() string {
	if f.Is() {
		return fmt.Sprintf("HostDriver: %s at %s", f.Version, f.Root)
	}
	return "the host has no driver of its own: " + f.Why
}

// Look looks at a host whose root is seen at root, and whose /proc and /sys at kernel.
func Look(root, kernel *host.Root) (Found, error) {
	loaded, version, err := module(kernel)
	if err != nil {
		return Found{}, err
	}
	its, contained := container(root)
	found, own, err := libraries(root, contained)
	switch {
	case err != nil:
		return Found{}, err
	case !found && loaded:
		return Found{Why: fmt.Sprintf("the kernel module nvidia, version %s, is loaded and no library of it is on the host: a driver container loaded it", known(version))}, nil
	case !found:
		return Found{Why: "there is no libnvidia-ml on it, and no kernel module nvidia is loaded"}, nil
	case loaded && contained && (agree(its, version) || !agree(own.Version, version)):
		return Found{Why: fmt.Sprintf("the kernel module nvidia, version %s, is that of the driver container that shows its root at %s", known(version), check.ContainerRoot)}, nil
	case loaded && agree(own.Version, version):
		return own.named(version, "its kernel module is loaded and its libraries are there"), nil
	}
	there, release, err := installed(root, kernel)
	switch {
	case err != nil:
		return Found{}, err
	case there && loaded:
		return own.named(version, "its kernel module is loaded, and its libraries are of another version: an upgrade that was not finished"), nil
	case there:
		return own.named("", "it is installed for kernel "+release+" and not loaded yet"), nil
	}
	return Found{Why: fmt.Sprintf("there are libraries of version %s below %s, and no kernel module nvidia for kernel %s", known(own.Version), own.Root, release)}, nil
}

// agree says whether libraries and module may belong together; "" is not known.
func agree(library, module string) bool { return library == "" || module == "" || library == module }

// named is the host's driver, of the version of the module that is loaded, or of its
// libraries'.
func (f Found) named(module, why string) Found {
	if module != "" {
		f.Version = module
	}
	f.Version, f.Why = known(f.Version), why
	return f
}

func known(version string) string {
	if version == "" {
		return "unknown"
	}
	return version
}

// Kernel says whether a root has the kernel's /proc.
func Kernel(root *host.Root) bool {
	_, err := root.Stat("/proc/version")
	return err == nil
}

// module says whether the kernel module nvidia is loaded, and its version, "" if it does
// not tell.
func module(kernel *host.Root) (loaded bool, version string, err error) {
	data, err := kernel.ReadFile("/proc/modules", maxModules)
	if errors.Is(err, fs.ErrNotExist) && Kernel(kernel) {
		return false, "", nil // a kernel that knows no modules
	}
	if err != nil {
		return false, "", fmt.Errorf("cannot tell which kernel modules are loaded: %w; mount the host's root, with its /proc, at --host-root", err)
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

func versionOf(library string) string {
	if m := versionPattern.FindStringSubmatch(library); m != nil {
		return m[1]
	}
	return ""
}

// libraries looks for a driver's on the host, but for those of a container.
func libraries(root *host.Root, contained bool) (is bool, f Found, err error) {
	for _, dir := range roots() {
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
		return true, Found{Version: versionOf(library), Root: dir}, nil
	}
	return false, f, nil
}

// container says whether a driver container shows its root now, and of which version its
// libraries are. Some hosts show their own root there, by a link or a bind mount.
func container(root *host.Root) (version string, is bool) {
	library, err := nvml.FindLibrary(root.Dir(), check.ContainerRoot)
	if err != nil {
		return "", false
	}
	own, err := root.Stat("/")
	if err != nil {
		return "", false
	}
	its, err := root.Stat(check.ContainerRoot)
	return versionOf(library), err == nil && !os.SameFile(own, its)
}

var moduleFile = regexp.MustCompile(`(?m)^(?:\S*/)?nvidia\.ko(?:\.\w+)?:`)

// installed says whether modprobe would find the module for the kernel that runs.
func installed(root, kernel *host.Root) (is bool, release string, err error) {
	data, err := kernel.ReadFile("/proc/sys/kernel/osrelease", maxLine)
	if err != nil {
		return false, "", fmt.Errorf("cannot tell which kernel runs: %w", err)
	}
	release = strings.TrimSpace(string(data))
	dep, err := root.ReadFile(path.Join("/lib/modules", path.Base(release), "modules.dep"), maxDep)
	if errors.Is(err, fs.ErrNotExist) {
		return false, release, nil
	}
	if err != nil {
		return false, release, fmt.Errorf("cannot tell which kernel modules are installed: %w", err)
	}
	return moduleFile.Match(dep), release, nil
}
