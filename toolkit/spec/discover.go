// Package spec decides what a container with a GPU gets: which files of the
// driver (found with NVIDIA's nvcdi) and which device nodes, written down as
// CDI specifications. Finding looks at the host; Build is a pure function.
package spec

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"

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

// Files are what every container with a GPU gets of the driver.
type Files struct {
	Mounts  []Mount
	Links   []string // "target::path", to be made in the container
	Folders []string // where the container's loader must look
	Env     []string
}

// Find looks for the files of the driver of the given version below a driver
// root of the host. Paths in the answer are the host's.
func Find(root *host.Root, driverRoot, version string) (Files, error) {
	here, err := place(root, driverRoot)
	if err != nil {
		return Files{}, err
	}
	lib, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(quiet{}),
		nvcdi.WithDriverRoot(here),
		nvcdi.WithNvmlLib(versionOnly{version: version}),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithDisabledHooks(nvcdi.AllHooks), // but these: what a later version adds by itself is not wanted
		nvcdi.WithEnabledHooks(nvcdi.CreateSymlinksHook, nvcdi.UpdateLDCacheHook),
	)
	if err != nil {
		return Files{}, fmt.Errorf("driver root %s: %w", driverRoot, err)
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return Files{}, fmt.Errorf("driver root %s: looking for the files of driver %s: %w", driverRoot, version, err)
	}
	base, err := filepath.EvalSymlinks(root.Dir())
	if err != nil {
		return Files{}, err
	}
	f := Files{Env: edits.Env}
	for _, m := range edits.Mounts {
		p, ok := below(base, m.HostPath)
		if !ok {
			continue // an absolute link led out of the host's file system
		}
		f.Mounts = append(f.Mounts, Mount{p, path.Clean(m.ContainerPath), m.Options})
	}
	for _, h := range edits.Hooks {
		for i := 2; i+1 < len(h.Args); i += 2 {
			switch {
			case h.Args[1] == string(nvcdi.CreateSymlinksHook) && h.Args[i] == "--link":
				f.Links = append(f.Links, h.Args[i+1])
			case h.Args[1] == string(nvcdi.UpdateLDCacheHook) && h.Args[i] == "--folder":
				f.Folders = append(f.Folders, h.Args[i+1])
			}
		}
	}
	f.normalise()
	if !slices.ContainsFunc(f.Mounts, func(m Mount) bool { return strings.HasPrefix(path.Base(m.Host), "libcuda.so.") }) {
		return Files{}, fmt.Errorf("%w: no libcuda.so.%s below %s, only libnvidia-ml; install the driver's compute libraries there (libcuda1, nvidia-driver-cuda-libs, or the installer without --no-…-libs)", ErrNoCUDA, version, driverRoot)
	}
	return f, nil
}

// normalise puts everything in an order that does not depend on that of
// directories, without what is there twice.
func (f *Files) normalise() {
	slices.SortFunc(f.Mounts, func(a, b Mount) int { return strings.Compare(a.Container, b.Container) })
	f.Mounts = slices.CompactFunc(f.Mounts, func(a, b Mount) bool { return a.Container == b.Container })
	for _, list := range []*[]string{&f.Links, &f.Folders, &f.Env} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
}

// place is where this process sees the driver root, all links followed, so that
// what is found below it begins with it.
func place(root *host.Root, driverRoot string) (string, error) {
	real, err := root.Resolve(driverRoot)
	if err != nil {
		return "", err
	}
	base, err := filepath.EvalSymlinks(root.Dir())
	if err != nil {
		return "", err
	}
	return filepath.Join(base, real), nil
}

func below(base, p string) (string, bool) {
	if base == "/" {
		return path.Clean(p), path.IsAbs(p)
	}
	rest, ok := strings.CutPrefix(path.Clean(p), base+"/")
	return "/" + rest, ok
}

// versionOnly is all of NVML that nvcdi needs to look for files: the version
// is known already, and loading a second library is not possible (a process can
// have one).
type versionOnly struct {
	nvml.Interface
	version string
}

func (versionOnly) Init() nvml.Return     { return nvml.SUCCESS }
func (versionOnly) Shutdown() nvml.Return { return nvml.SUCCESS }
func (v versionOnly) SystemGetDriverVersion() (string, nvml.Return) {
	return v.version, nvml.SUCCESS
}

// quiet drops nvcdi's log: 350 lines for one specification. What it does not
// find is seen from what it returns.
type quiet struct{}

func (quiet) Debugf(string, ...any)   {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Tracef(string, ...any)   {}
