package nvml

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// soname is the name under which programs link libnvidia-ml.
const soname = "libnvidia-ml.so.1"

// directories returns the directories, below a driver root, in which distributions
// put the library: Fedora and SUSE, Debian and Ubuntu, Debian's alternatives, others.
func directories() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{
		"/usr/lib64", "/usr/lib/" + triplet, "/usr/lib/" + triplet + "/nvidia/current", "/usr/lib",
		"/lib64", "/lib/" + triplet, "/lib", "/usr/local/lib64", "/usr/local/lib",
		"/usr/local/nvidia/lib64", // used by installers that may not write to /usr
		"/run/opengl-driver/lib",  // NixOS
	}
}

// machine is the ELF machine type that this process can load.
var machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// FindLibrary finds libnvidia-ml below a driver root of the host, whose file system
// is mounted at hostRoot ("" is "/" for both). It returns a path of this process
// with every link followed inside the root, so that it names the file itself:
// …/libnvidia-ml.so.580.95.05. If there is none, the error wraps gpu.ErrNoDriver.
func FindLibrary(hostRoot, driverRoot string) (string, error) {
	return findBelow(hostRoot, driverRoot, directories())
}

// findAnywhere is like FindLibrary, but then also searches this process's loader
// directories: a container runtime may have put the library there.
func findAnywhere(hostRoot, driverRoot string) (string, error) {
	found, err := FindLibrary(hostRoot, driverRoot)
	if err == nil || !errors.Is(err, gpu.ErrNoDriver) {
		return found, err
	}
	own := slices.Concat(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), directories())
	if found, ownErr := findBelow("/", "/", slices.DeleteFunc(own, func(dir string) bool { return !path.IsAbs(dir) })); ownErr == nil {
		return found, nil
	}
	return "", err
}

// findBelow finds the library below one root, following links inside it.
func findBelow(hostRoot, driverRoot string, directories []string) (string, error) {
	root, err := openDriverRoot(hostRoot, driverRoot)
	if err != nil {
		return "", err
	}
	defer root.Close()
	for _, dir := range directories {
		real, err := root.Resolve(path.Join(dir, soname))
		if err != nil || !loadable(root, real) {
			continue
		}
		// The directory that was opened may itself have been reached by links.
		found, err := filepath.EvalSymlinks(root.Path(real))
		if errors.Is(err, fs.ErrNotExist) { // removed since: a driver is being replaced
			continue
		}
		return found, err
	}
	return "", fmt.Errorf("%w: no %s below %s; install the driver there, or say where it is with --driver-root", gpu.ErrNoDriver, soname, root.Dir())
}

// openDriverRoot opens the driver root, following links on the way to it as
// the host would.
func openDriverRoot(hostRoot, driverRoot string) (*host.Root, error) {
	outer, err := host.Open(hostRoot)
	if err != nil {
		return nil, fmt.Errorf("opening the host's root: %w", err)
	}
	defer outer.Close()
	real, err := outer.Resolve(path.Join("/", driverRoot))
	if err != nil {
		return nil, fmt.Errorf("%w: driver root %s: %w", gpu.ErrNoDriver, driverRoot, err)
	}
	root, err := host.Open(outer.Path(real))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: driver root %s is not there yet", gpu.ErrNoDriver, outer.Path(real))
	}
	if err != nil {
		return nil, fmt.Errorf("opening the driver root: %w", err)
	}
	return root, nil
}

// loadable reports whether a file is a library for this machine: /usr/lib holds
// 32-bit ones on some distributions.
func loadable(root *host.Root, name string) bool {
	file, err := root.OpenFile(name)
	if err != nil {
		return false
	}
	defer file.Close()
	head := make([]byte, 20) // up to e_machine
	if _, err := file.ReadAt(head, 0); err != nil {
		return false
	}
	return string(head[:4]) == elf.ELFMAG && elf.Class(head[elf.EI_CLASS]) == elf.ELFCLASS64 &&
		elf.Machine(head[18])|elf.Machine(head[19])<<8 == machine
}

// loaded returns the path of the libnvidia-ml that is mapped into this process, as
// the kernel reports it: "… (deleted)" if it was removed or replaced since, "" if
// there is none. Callers compare paths, not inodes: on overlayfs, which driver
// containers use, the two views of an inode differ.
func loaded() (string, error) {
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		return "", err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, ok := parseMapping(lines.Text()); ok {
			return name, nil
		}
	}
	return "", lines.Err()
}

// parseMapping reads a line of /proc/self/maps: address, permissions, offset,
// device, inode, path (proc(5)). ok is false unless it maps a libnvidia-ml.
func parseMapping(line string) (name string, ok bool) {
	start := strings.Index(line, "/") // only the path has a slash, and it may hold spaces
	if start < 0 {
		return "", false
	}
	name = line[start:]
	return name, strings.HasPrefix(path.Base(strings.TrimSuffix(name, deleted)), "libnvidia-ml.so")
}

// deleted is the suffix that the kernel adds to the path of a removed file.
const deleted = " (deleted)"
