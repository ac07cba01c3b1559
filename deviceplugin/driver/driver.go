// Package driver finds the driver's NVML library, waits until there is one, and notices
// when the library in use is replaced. It reacts to events of the kernel. Only for
// changes without an event does it check at intervals.
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
	"github.com/gpuready/gpuready/internal/library"
)

// Containerised is the host path of a driver container's root.
const Containerised = "/run/nvidia/driver"

const (
	// checkInterval is the interval of checks for a change without an event: the kernel's events of devices
	// cannot be received, or a module that was loaded long before became able to work.
	checkInterval = 10 * time.Second
	// moduleTime is the time that a module is given to initialise after the kernel has told that it is loaded.
	moduleTime = time.Second
)

// Place describes where a driver may be: below a given root, or, with Root "", below
// that of a driver container or else on the host itself.
type Place struct {
	HostRoot  string   // the host's root folder as this process sees it; "" is "/"
	Root      string   // host path
	RootOnly  bool     // search only below Root, not also where this process's dynamic loader searches
	MoreFiles []string // paths of more files whose change triggers a check, as this process sees them

	// WatchDevices delivers the kernel's events of GPUs and of the driver's modules until ctx ends. nil: host.WatchDevices.
	WatchDevices func(ctx context.Context, changed func(host.DeviceEvent)) error
}

// Find returns the driver root, a host path, and the path of its NVML library as this process
// sees it. The error wraps gpu.ErrNoDriver.
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

// roots returns the host paths to search, in this order.
func (p Place) roots() []string {
	if p.Root != "" {
		return []string{p.Root}
	}
	return []string{Containerised, "/"}
}

// watchedPaths returns the files whose appearance may mean that there is a driver, or
// another one: the libraries in all folders of drivers, the loader's cache, and the control
// devices of driver and unified memory.
func (p Place) watchedPaths() ([]string, error) {
	root, err := host.Open(filepath.Join("/", p.HostRoot))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var paths []string
	for _, dir := range p.roots() {
		for _, file := range append(library.WatchedFiles(root, dir, "libnvidia-ml.so.1", "libcuda.so.1"),
			filepath.Join(dir, "dev/nvidiactl"), filepath.Join(dir, "dev/nvidia-uvm")) {
			paths = append(paths, root.Path(file))
		}
	}
	return paths, nil
}

func (p Place) watchDevices() func(context.Context, func(host.DeviceEvent)) error {
	if p.WatchDevices != nil {
		return p.WatchDevices
	}
	return host.WatchDevices
}

// mountableRoots returns the roots to watch for being mounted. The host's own root is not among
// them, since there are mounts below it with each pod.
func (p Place) mountableRoots() []string {
	var roots []string
	for _, root := range p.roots() {
		if path := filepath.Join("/", p.HostRoot, root); path != filepath.Join("/", p.HostRoot) {
			roots = append(roots, path)
		}
	}
	return roots
}

// watchUntil calls check at once, at each change of the watched files and of moreFiles, at the kernel's events of
// GPUs and of the driver's modules, and every checkInterval, from one goroutine, until check returns true or ctx
// ends. It sets up the watch only after the first check, which usually succeeds, and then checks again.
func (p Place) watchUntil(ctx context.Context, moreFiles []string, check func() (done bool)) error {
	if check() {
		return nil
	}
	files, err := p.watchedPaths()
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() error {
		return host.Watch(ctx, append(files, moreFiles...), p.mountableRoots(), notifier(changed))
	})
	devices := make(chan struct{}, 1)
	group.Go(func() error {
		_ = p.watchDevices()(ctx, func(host.DeviceEvent) { notifier(devices)() })
		return ctx.Err() // nil if there are no events: checkInterval remains
	})
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	module := time.NewTimer(0)
	<-module.C
	defer module.Stop()
	for done := false; !done; done = check() {
		select {
		case <-changed: // also as soon as the watch is set up
		case <-devices:
			module.Reset(moduleTime)
		case <-module.C:
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

// notifier returns a function that makes c ready to receive from.
func notifier(c chan<- struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// WaitOpen calls open at once and at each change that may have installed a driver, until open
// succeeds. It passes each error to onError, unless canRetry reports that waiting cannot help:
// then it returns the error.
func WaitOpen[T any](ctx context.Context, p Place, open func() (T, error), canRetry func(error) bool, onError func(error)) (T, error) {
	var source T
	var last error
	err := p.watchUntil(ctx, p.MoreFiles, func() bool {
		if ctx.Err() != nil {
			return false
		}
		source, last = open()
		if last == nil || !canRetry(last) {
			return true
		}
		onError(last)
		return false
	})
	if err != nil {
		last = err
	}
	return source, last
}

// Library identifies the file of a libnvidia-ml at one moment.
type Library struct {
	Path string      // as this process sees it; "": none
	info os.FileInfo // nil: there was no such file
}

// StatLibrary returns the current identity of a library. Call it before opening NVML, so that
// WaitReplaced notices a replacement in between.
func StatLibrary(path string) Library {
	info, err := os.Stat(path)
	if err != nil {
		info = nil
	}
	return Library{Path: path, info: info}
}

// isSameFile reports whether l and other are the same file, unchanged. Inode numbers are reused,
// so they alone do not suffice.
func (l Library) isSameFile(other Library) bool {
	if l.info == nil || other.info == nil {
		return l.Path == other.Path && l.info == other.info
	}
	return l.Path == other.Path && os.SameFile(l.info, other.info) &&
		l.info.Size() == other.info.Size() && l.info.ModTime().Equal(other.info.ModTime())
}

// WaitReplaced waits until the library that Find returns is another file than the loaded one, and
// then returns nil. A missing driver does not count as replaced.
func WaitReplaced(ctx context.Context, p Place, loaded Library) error {
	return p.watchUntil(ctx, []string{loaded.Path}, func() bool {
		_, library, err := p.Find()
		if err != nil {
			return false
		}
		found := StatLibrary(library)
		return found.info != nil && !loaded.isSameFile(found)
	})
}

// HasGPU reports whether the machine has an NVIDIA GPU on its PCI bus, with or without a driver.
// It reports true if that cannot be determined.
func HasGPU(hostRoot string) bool {
	root, err := host.Open(filepath.Join("/", hostRoot))
	if err != nil {
		return true
	}
	defer func() { _ = root.Close() }()
	return root.HasGPU()
}

// PlatformFault returns why the machine's GPUs are not served, whatever driver it has. The zero Fault
// means that its platform is served, or not known.
func PlatformFault(hostRoot string) gpu.Fault {
	root, err := host.Open(filepath.Join("/", hostRoot))
	if err != nil {
		return gpu.Fault{}
	}
	defer func() { _ = root.Close() }()
	platform := root.Platform()
	if platform == "" {
		return gpu.Fault{}
	}
	message, action := platform.Describe()
	return gpu.Fault{Reason: "PlatformNotServed", Message: message + "; " + action}
}

// IsModuleLoaded reports whether the nvidia kernel module is loaded: it then has a folder in
// /proc, which containers see too.
func IsModuleLoaded(hostRoot string) bool {
	_, err := os.Stat(filepath.Join("/", hostRoot, "proc/driver/nvidia/version"))
	return err == nil
}

// Reason returns the reason in the state file for an error of opening the driver.
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
