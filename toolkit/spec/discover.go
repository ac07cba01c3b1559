// Package spec determines which driver files and device nodes a container with a GPU
// gets, in the form of CDI specifications. Find and FindPeripherals read the host; Build is a pure
// function.
package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// ErrNoCUDA is returned, wrapped, for a driver without libcuda: containers would
// start and find no CUDA.
var ErrNoCUDA = errors.New("the driver has no libcuda")

// Mount is a file of the host that is mounted into containers.
type Mount struct {
	Host, Container string
	Options         []string
}

// Files are the driver's files that every container with a GPU gets.
type Files struct {
	Version string // of the driver
	Mounts  []Mount
	Links   []string // "target::path", to be created in the container
	Folders []string // directories for the container's loader
	Env     []string
}

// invisible prevents NVIDIA's container runtime, if present, from adding further GPUs to
// a container.
const invisible = "NVIDIA_VISIBLE_DEVICES=void"

// The mount options of files and sockets. Nothing of the host is writable: programs can
// connect to a socket that is mounted read-only, but not change its mode or owner.
var (
	readOnly = []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
	socket   = []string{"ro", "nosuid", "nodev", "rbind", "rprivate", "noexec"}
)

// Find finds the files of the driver of the given version below a driver root of the
// host, and follows links inside of it. Container paths are the paths below the driver
// root.
//
// It finds the same files as NVIDIA's nvcdi (nvcdi_test.go lists the differences), but
// reads each directory once. nvcdi takes 50 ms and 7 MB for a host with 3,000 libraries.
func Find(root *host.Root, driverRoot, version string) (Files, error) {
	at, err := root.Resolve(driverRoot)
	if err != nil {
		return Files{}, err
	}
	inside, err := host.Open(root.Path(at))
	if err != nil {
		return Files{}, fmt.Errorf("driver root %s: %w", driverRoot, err)
	}
	defer inside.Close()
	f := &finder{machine: root, root: inside, at: at, version: version, lists: map[string][]string{}, private: map[string]bool{}}
	f.Version = version
	libraries, err := f.libraryDir(driverRoot)
	if err != nil {
		return Files{}, err
	}
	f.addLibraries(libraries)
	f.graphics(libraries)
	f.xorg(libraries)
	f.configuration()
	f.firmware()
	f.programs(libraries)
	f.sockets()
	f.Env = []string{"NVIDIA_CTK_LIBCUDA_DIR=" + libraries, invisible}
	if err := errors.Join(f.errs...); err != nil {
		return Files{}, fmt.Errorf("driver root %s: find the files of driver %s: %w", driverRoot, version, err)
	}
	f.normalise()
	return f.Files, nil
}

// libraryDir returns the directory of libcuda of this version below the driver root.
func (f *finder) libraryDir(driverRoot string) (string, error) {
	for _, dir := range libraryDirs() {
		if found := f.match(dir, "libcuda.so."+f.version); len(found) > 0 {
			return path.Dir(found[0]), nil
		}
	}
	for _, dir := range libraryDirs() {
		if len(f.match(dir, "libnvidia-ml.so."+f.version)) > 0 {
			return "", fmt.Errorf("%w: no libcuda.so.%s below %s, only libnvidia-ml; install the driver's compute libraries there (libcuda1, nvidia-driver-cuda-libs, or the installer without --no-…-libs)", ErrNoCUDA, f.version, driverRoot)
		}
	}
	return "", fmt.Errorf("driver root %s: no libcuda.so.%s and no libnvidia-ml.so.%[2]s in %s: %w", driverRoot, f.version, strings.Join(libraryDirs(), ", "), errors.Join(append(f.errs, errGone)...))
}

// errGone means that the files of a driver have vanished.
var errGone = errors.New("the driver's files do not exist")

// normalise sorts everything independently of the order of directories, and removes
// duplicates.
func (f *Files) normalise() {
	slices.SortStableFunc(f.Mounts, func(a, b Mount) int { return strings.Compare(a.Container, b.Container) })
	f.Mounts = slices.CompactFunc(f.Mounts, func(a, b Mount) bool { return a.Container == b.Container })
	for _, list := range []*[]string{&f.Links, &f.Folders, &f.Env} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
}
