// Package driver finds the driver's NVML library, waits for one that is not
// there yet, and notices when the one in use was replaced. It looks when the
// kernel says that something changed; only where the kernel has no event for a
// change (a module that was loaded) does it look again after a while.
package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host"
)

// Containerised is where a driver container shows its root, a host path.
const Containerised = "/run/nvidia/driver"

// moduleInterval is how often to look for what no event tells: that the kernel
// module was loaded while library and device nodes were there already.
const moduleInterval = 10 * time.Second

// Place says where a driver may be: below a root that is given, or, with Root
// "", below that of a driver container or else on the host itself.
type Place struct {
	HostRoot string   // where the host's file system is seen; "" is "/"
	Root     string   // host path
	Only     bool     // it is below Root or nowhere: not on the path of the loader either
	Also     []string // other files whose change is a reason to look again, as this process sees them
}

// Find returns the driver root (a host path) and the library in it, as this
// process sees it. The error wraps gpu.ErrNoDriver.
func (p Place) Find() (root, library string, err error) {
	for _, root := range p.roots() {
		library, findErr := nvml.FindLibrary(p.HostRoot, root)
		if findErr == nil {
			return root, library, nil
		}
		if err == nil {
			err = findErr
		}
	}
	roots := p.roots()
	return roots[len(roots)-1], "", err
}

func (p Place) roots() []string {
	if p.Root != "" {
		return []string{p.Root}
	}
	return []string{Containerised, "/"}
}

// watched are the files whose coming may mean that there is a driver now, or
// another one: the library's names where distributions put it, and the control
// devices of driver and unified memory.
func (p Place) watched() []string {
	var paths []string
	for _, root := range p.roots() {
		for _, name := range []string{
			"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib",
			"lib64", "lib", "usr/local/lib", "usr/local/nvidia/lib64",
		} {
			dir := filepath.Join("/", p.HostRoot, root, name)
			paths = append(paths, filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "libcuda.so.1"))
		}
		dev := filepath.Join("/", p.HostRoot, root, "dev")
		paths = append(paths, filepath.Join(dev, "nvidiactl"), filepath.Join(dev, "nvidia-uvm"))
	}
	return paths
}

// mountable are the roots that may come as a mount: not the host's own, below
// which pods mount all the time.
func (p Place) mountable() []string {
	var roots []string
	for _, root := range p.roots() {
		if path := filepath.Join("/", p.HostRoot, root); path != filepath.Join("/", p.HostRoot) {
			roots = append(roots, path)
		}
	}
	return roots
}

// watch calls look at once, at each change of what is watched, and every
// moduleInterval, from one goroutine, until look says that it is done or ctx ends.
func (p Place) watch(ctx context.Context, also []string, look func() (done bool)) error {
	changed := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() error { return host.Watch(ctx, append(p.watched(), also...), p.mountable(), poke(changed)) })
	tick := time.NewTicker(moduleInterval)
	defer tick.Stop()
	for !look() {
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return group.Wait()
		}
	}
	cancel()
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// poke returns a function that makes c ready to receive from.
func poke(c chan<- struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Wait calls open until it has a driver, at each change that may have brought
// one. waiting is told why there is none yet. An error that waiting cannot cure
// is returned: cure says which ones it can.
func Wait[T any](ctx context.Context, p Place, open func() (T, error), cure func(error) bool, waiting func(error)) (T, error) {
	var source T
	var last error
	err := p.watch(ctx, p.Also, func() bool {
		if ctx.Err() != nil {
			return false
		}
		source, last = open()
		if last == nil || !cure(last) {
			return true
		}
		waiting(last)
		return false
	})
	if err != nil {
		last = err
	}
	return source, last
}

// Library is a libnvidia-ml as it was when it was looked at.
type Library struct {
	Path string // as this process sees it; "": none
	info os.FileInfo
}

// Look looks at a library. Do it before opening NVML: a replacement that comes
// in between is then noticed.
func Look(path string) Library {
	info, err := os.Stat(path)
	if err != nil {
		info = nil
	}
	return Library{Path: path, info: info}
}

// is says whether it is the same file still. Numbers of inodes are used again,
// so they alone do not tell.
func (l Library) is(now Library) bool {
	if l.info == nil || now.info == nil {
		return l.Path == now.Path && l.info == now.info
	}
	return l.Path == now.Path && os.SameFile(l.info, now.info) &&
		l.info.Size() == now.info.Size() && l.info.ModTime().Equal(now.info.ModTime())
}

// Replaced waits until the library that is found is no longer the one that was
// loaded, and returns nil then. A driver that is only gone is not replaced.
func Replaced(ctx context.Context, p Place, loaded Library) error {
	return p.watch(ctx, []string{loaded.Path}, func() bool {
		_, library, err := p.Find()
		if err != nil {
			return false
		}
		now := Look(library)
		return now.info != nil && !loaded.is(now)
	})
}

// HasGPU says whether the machine has an NVIDIA GPU on its PCI bus, driver or
// not; where it cannot be told, it may have one.
func HasGPU(hostRoot string) bool {
	root, err := host.Open(filepath.Join("/", hostRoot))
	if err != nil {
		return true
	}
	defer func() { _ = root.Close() }()
	return root.HasGPU()
}

// Loaded says whether the nvidia kernel module is loaded: it then has a folder
// in /proc, which containers see too.
func Loaded(hostRoot string) bool {
	_, err := os.Stat(filepath.Join("/", hostRoot, "proc/driver/nvidia/version"))
	return err == nil
}

// Reason names in one word why there is no driver to work with.
func Reason(err error) gpu.Reason {
	switch {
	case errors.Is(err, gpu.ErrNoPermission):
		return "NoPermission"
	case errors.Is(err, gpu.ErrVersionMismatch):
		return "DriverVersionMismatch"
	case errors.Is(err, gpu.ErrNoDriver):
		return "NoDriver"
	}
	return "DriverFailed"
}
