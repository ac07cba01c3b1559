package nvml

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
)

// soname is the name under which programs link libnvidia-ml.
const soname = "libnvidia-ml.so.1"

// FindLibrary finds libnvidia-ml below a driver root of the host, whose file system
// is mounted at hostRoot ("" is "/" for both). Of several it prefers the one of the
// loaded kernel module's version. It returns a path of this process
// with every link followed inside the root, so that it names the file itself:
// …/libnvidia-ml.so.580.95.05. If there is none, the error wraps gpu.ErrNoDriver.
func FindLibrary(hostRoot, driverRoot string) (string, error) {
	return findBelow(hostRoot, driverRoot)
}

// findAnywhere is like FindLibrary, but then also searches this process's loader
// directories: a container runtime may have put the library there.
func findAnywhere(hostRoot, driverRoot string) (string, error) {
	found, err := FindLibrary(hostRoot, driverRoot)
	if err == nil || !errors.Is(err, gpu.ErrNoDriver) {
		return found, err
	}
	own := slices.DeleteFunc(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), func(dir string) bool { return !path.IsAbs(dir) })
	if found, ownErr := findBelow("/", "/", own...); ownErr == nil {
		return found, nil
	}
	return "", err
}

// findBelow finds the library below one root, in the first directories before all
// others.
func findBelow(hostRoot, driverRoot string, first ...string) (string, error) {
	root, err := openDriverRoot(hostRoot, driverRoot)
	if err != nil {
		return "", err
	}
	defer root.Close()
	own, err := host.Open("/")
	if err != nil {
		return "", err
	}
	defer own.Close()
	f := library.New(root, first...)
	if real, ok := f.Find(soname, library.LoadedVersion(root, own)); ok {
		// The directory that was opened may itself have been reached by links.
		found, err := filepath.EvalSymlinks(root.Path(real))
		if !errors.Is(err, fs.ErrNotExist) { // else a driver is being replaced
			return found, err
		}
	}
	return "", errors.Join(fmt.Errorf("%w: no %s below %s; install the driver there, or say where it is with --driver-root", gpu.ErrNoDriver, soname, root.Dir()), f.Err())
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
