// Package spec determines which driver files and device nodes a container with a GPU
// gets, in the form of CDI specifications. Find and FindPeripherals read the host; Build is a pure
// function.
package spec

import (
	"errors"
	"fmt"
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

	Warnings []string // what was left out, and why
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
	f := &finder{
		machine: root, root: inside, at: at, version: version, lists: map[string][]string{}, private: map[string]bool{},
		taken: map[string]string{}, refused: map[string]error{}, leftOut: map[string][]string{},
	}
	f.Version = version
	cuda, err := f.addLibraries(driverRoot)
	if err != nil {
		return Files{}, err
	}
	f.graphics()
	f.xorg()
	f.configuration()
	f.firmware()
	f.programs(cuda)
	f.sockets()
	f.Env = []string{"NVIDIA_CTK_LIBCUDA_DIR=" + strings.Join(f.libraries, ":"), invisible}
	f.warn()
	if err := errors.Join(f.errs...); err != nil {
		return Files{}, fmt.Errorf("driver root %s: find the files of driver %s: %w", driverRoot, version, err)
	}
	f.normalise()
	return f.Files, nil
}

// errGone means that the files of a driver have vanished.
var errGone = errors.New("the driver's files do not exist")

// normalise sorts everything independently of the order of directories, and removes
// duplicates. A link is one where a file is mounted.
func (f *Files) normalise() {
	slices.SortStableFunc(f.Mounts, func(a, b Mount) int { return strings.Compare(a.Container, b.Container) })
	f.Mounts = slices.CompactFunc(f.Mounts, func(a, b Mount) bool { return a.Container == b.Container })
	f.Links = slices.DeleteFunc(f.Links, func(link string) bool {
		_, at, _ := strings.Cut(link, "::")
		_, mounted := slices.BinarySearchFunc(f.Mounts, at, func(m Mount, at string) int { return strings.Compare(m.Container, at) })
		return mounted
	})
	for _, list := range []*[]string{&f.Links, &f.Folders, &f.Env} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
}
