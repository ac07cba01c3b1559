package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// This file lets Builder work for NVIDIA's driver container, which differs from Client:
//
//   - It puts the driver itself into the folder, drivers/NVIDIA-Linux-<arch>-<version>.run,
//     and its whole environment into env. Neither names the modules, nor the kernel.
//   - It copies modules/ into its own /lib/modules/<release> and runs modprobe there. The
//     folder has to hold the kernel's modules that the driver needs, too, and depmod's files.
//   - It waits for driver_build_started, or falls back on a build of its own if there is a
//     driver_toolkit_broken; then it waits for driver_built for ever. So Builder writes both
//     files at the end of a successful build.

// The variables that are read of NVIDIA's env, besides DRIVER_VERSION and KERNEL_MODULE_TYPE.
const (
	envDriverType = "DRIVER_TYPE"
	envOpen       = "OPEN_KERNEL_MODULES_ENABLED"
	envRDMA       = "GPU_DIRECT_RDMA_ENABLED"
)

// kindFolders holds the source folders of an unpacked driver by the kind of modules.
var kindFolders = map[kernel.Kind]string{kernel.OpenKind: "kernel-open", kernel.Proprietary: "kernel"}

// needed lists the kernel modules that NVIDIA's driver container loads first.
var needed = []string{"i2c_core", "ipmi_msghandler", "ipmi_devintf", "video"}

// machines holds NVIDIA's names of processors by GOARCH.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// readNVIDIA returns the request of NVIDIA's driver container. Its Kind may be "auto".
func (s *Builder) readNVIDIA() (Request, error) {
	text, err := record.Read(filepath.Join(s.Dir, envName), maxNVIDIAEnv)
	if err != nil {
		return Request{}, err
	}
	env, err := parseNVIDIAEnv(string(text), envVersion, envKind, envDriverType, envOpen, envRDMA)
	if err != nil {
		return Request{}, err
	}
	if env[envDriverType] == "vgpu" {
		return Request{}, errors.New("a vGPU driver (DRIVER_TYPE) chooses its version by the hypervisor's, in NVIDIA's own Driver Toolkit container alone")
	}
	kind, err := kernel.ParseKind(env[envKind])
	if err != nil {
		return Request{}, err
	}
	if kind == kernel.Auto && env[envOpen] == "true" {
		kind = kernel.OpenKind
	}
	release, err := s.System.Release()
	if err != nil {
		return Request{}, err
	}
	r := Request{Release: release, Version: env[envVersion], Kind: string(kind), Modules: []string{"nvidia", "nvidia-uvm", "nvidia-modeset"}}
	if env[envRDMA] == "true" {
		r.Modules = append(r.Modules, "nvidia-peermem")
	}
	if err := r.checkComplete(); err != nil {
		return Request{}, err
	}
	_, err = s.findDriver(r.Version)
	return r, err
}

// findDriver returns the path of the installer that NVIDIA's container put into the folder.
func (s *Builder) findDriver(version string) (string, error) {
	name := "NVIDIA-Linux-" + machines[runtime.GOARCH] + "-" + version + ".run"
	at := filepath.Join(s.Dir, "drivers", name)
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the driver container has put no drivers/%s into %s: it is not NVIDIA's image of driver %s, or one with precompiled modules", name, s.Dir, version)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", at)
	}
	return at, err
}

// buildUnpacked unpacks the driver and builds its modules.
func (s *Builder) buildUnpacked(ctx context.Context, r *request, builder func(context.Context, Request, string) (string, error)) (_ string, err error) {
	archive, err := s.findDriver(r.Version)
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(s.Work, "driver-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	// The archive is a program that unpacks itself. It has the same origin as this program.
	dir := filepath.Join(work, "unpacked")
	s.Log.Info("unpacking the driver", "file", archive)
	if err := output.New(work, s.Log).Run(ctx, output.Environment(work), "sh", archive, "--extract-only", "--target", dir); err != nil {
		return "", fmt.Errorf("unpack %s: %w", archive, err)
	}
	if err := s.chooseKind(r, dir); err != nil {
		return "", err
	}
	return builder(ctx, r.Request, filepath.Join(dir, kindFolders[kernel.Kind(r.Kind)]))
}

// chooseKind replaces the requested kind by one for which the driver has sources.
func (s *Builder) chooseKind(r *request, dir string) error {
	have := slices.DeleteFunc([]kernel.Kind{kernel.OpenKind, kernel.Proprietary}, func(k kernel.Kind) bool {
		info, err := os.Stat(filepath.Join(dir, kindFolders[k]))
		return err != nil || !info.IsDir()
	})
	own, err := host.Open("/")
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // it is only read
	gpus := own.GPUs(path.Join(s.System.Sys, strings.TrimPrefix(host.PCIDevices, "/sys")))
	kind, why, err := kernel.ChooseKind(kernel.Kind(r.Kind), have, gpus, r.Version)
	if err != nil {
		return err
	}
	s.Log.Info("the kind of modules is chosen", "kind", kind, "why", why)
	r.Kind = string(kind)
	return nil
}

// publishTree publishes the modules as NVIDIA's driver container expects them: the shared
// folder gets a whole /lib/modules/<release> for modprobe(8), and then driver_built.
func (s *Builder) publishTree(ctx context.Context, r *request, dir string) error {
	base, err := os.MkdirTemp(s.Work, "tree-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // the container's own file system, which goes with it
	tree := filepath.Join(base, "lib/modules", r.Release)
	built, err := s.fillTree(r, dir, tree)
	if err != nil {
		return err
	}
	// Some depmods look in /lib, others in /usr/lib.
	if err := os.Symlink(".", filepath.Join(base, "usr")); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "depmod", "-b", base, r.Release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w: %s", err, record.Clean(string(out), maxMessage/2))
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	if err := removeAll(root, modulesName); err != nil {
		return err
	}
	if err := copyFolderInto(ctx, root, tree, modulesName); err != nil {
		return err
	}
	if err := writeResponse(s.Dir, startedName, response{ID: r.id, Beat: 1}); err != nil {
		return err
	}
	return writeResponse(s.Dir, builtName, built)
}

// fillTree copies the modules, and the kernel modules that they need, to a folder.
func (s *Builder) fillTree(r *request, dir, tree string) (response, error) {
	built := response{ID: r.id, Modules: map[string]string{}}
	const video = "kernel/drivers/video" // nvidia-installer's folder
	if err := os.MkdirAll(filepath.Join(tree, video), 0o755); err != nil {
		return built, err
	}
	made, err := host.Open(dir)
	if err != nil {
		return built, err
	}
	defer made.Close() //nolint:errcheck // it is only read
	names := slices.Clone(needed)
	for _, name := range r.Modules {
		file := name + ".ko"
		if built.Modules[file], err = folder.SumFile(filepath.Join(dir, file)); err != nil {
			return built, err
		}
		if err := folder.CopyFile(filepath.Join(dir, file), filepath.Join(tree, video, file)); err != nil {
			return built, err
		}
		m, err := kernel.ReadModule(made, "/"+file)
		if err != nil {
			return built, err
		}
		names = append(names, m.Depends...)
	}
	return built, s.copyKernel(r.Release, names, tree)
}

// copyKernel copies kernel modules with their dependencies, and the lists of built-in modules.
// It skips modules that the kernel does not have.
func (s *Builder) copyKernel(release string, names []string, to string) error {
	root, err := host.Open(s.Root)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	dir := path.Join("/lib/modules", release)
	tree, err := kernel.ReadTree(root, dir)
	if err != nil {
		return err
	}
	files := []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"}
	for _, name := range names {
		for _, m := range append([]string{name}, tree.Dependencies(name)...) {
			if at := tree.Path(m); at != "" {
				files = append(files, strings.TrimPrefix(at, dir+"/"))
			}
		}
	}
	slices.Sort(files)
	for _, file := range slices.Compact(files) {
		data, err := root.ReadFile(path.Join(dir, file), maxModule)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		at := filepath.Join(to, file)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o755)); err != nil {
			return err
		}
		if err := os.WriteFile(at, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
