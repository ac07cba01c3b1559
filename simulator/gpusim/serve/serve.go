// Package serve runs the simulated driver in a container of a DaemonSet.
//
// The driver root is a separate file system, mounted when it is complete, so the driver
// appears and changes atomically. It outlives the process, as a kernel module outlives
// the container that loaded it. The next process resumes it if it is of the same
// machine; otherwise it mounts another one over it. At the end, only an unused driver is
// unloaded.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
)

// Reasons in the driver's state.
const (
	ReasonStarting   gpu.Reason = "DriverStarting"   // it is not there yet
	ReasonFailed     gpu.Reason = "DriverFailed"     // it could not be made, or was taken away
	ReasonStopped    gpu.Reason = "DriverStopped"    // it was unloaded
	ReasonUnattended gpu.Reason = "DriverUnattended" // it is there, its container is not
)

// Config configures the driver to serve and its location.
type Config struct {
	Root      string // where the driver root is mounted; its folder is made
	Spec      root.Spec
	Size      string        // most that the driver root may take, as tmpfs(5) reads it
	BootDelay time.Duration // how long a new driver takes to come
	StateDir  string        // of all components
	OutputDir string        // of the ecosystem's readiness files
	Listen    string        // "": nowhere
	Command   string        // for a gpusim that has to wait for this one
	Log       *slog.Logger
}

// ErrTaken means that the driver root was unmounted, or something else was
// mounted over it, while it was served.
var ErrTaken = errors.New("the driver root was taken away")

// driver is one run.
type driver struct {
	Config
	shared nodestate.DriverInfo

	mu   sync.Mutex
	said nodestate.State
}

// Run serves the driver root until ctx ends, then returns nil. host.ErrHeld means that
// another driver container serves it.
func Run(ctx context.Context, c Config) (err error) {
	d := &driver{Config: c}
	if err := os.MkdirAll(d.Root, 0o755); err != nil {
		return err
	}
	if d.Root, err = mount.Resolve(d.Root); err != nil {
		return err
	}
	if d.Root == "/" {
		return errors.New("/ is where a real driver belongs, and cannot be covered; use another --root")
	}
	lock, err := host.TryLock(filepath.Join(filepath.Dir(d.Root), host.DriverLock))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(err == nil)) }()
	d.shared = nodestate.DriverInfo{
		Root: d.Root, Version: c.Spec.Version, Simulated: true,
		CUDAVersion: fmt.Sprintf("%d.%d", c.Spec.State.CudaVersion/1000, c.Spec.State.CudaVersion%1000/10),
	}
	registry := metricsserver.NewRegistry()
	d.register(registry)
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return metricsserver.Serve(inner, d.Listen, registry, d.ready) })
	group.Go(func() error { return d.serve(inner) })
	err = group.Wait()
	if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return d.end()
	}
	return errors.Join(err, d.withdraw(), d.publishState(nodestate.Failed, ReasonFailed, oneLine(err)))
}

// serve ensures that the driver exists and watches it.
func (d *driver) serve(ctx context.Context) (err error) {
	mounts, err := host.WatchMounts([]string{d.Root})
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- mounts.Run(watching, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	err = d.ensureDriver(ctx)
	if err == nil {
		var closeSocket func() error
		if closeSocket, err = d.serveState(); err == nil {
			defer func() { err = errors.Join(err, closeSocket()) }()
		}
	}
	for err == nil {
		if err = d.check(); err != nil {
			break
		}
		select {
		case <-changed:
		case err = <-ended:
			ended <- err
		}
	}
	stop()
	if watched := <-ended; !errors.Is(watched, context.Canceled) {
		err = errors.Join(err, watched)
	}
	return err
}

// ensureDriver resumes or starts the driver, and publishes that it is ready.
func (d *driver) ensureDriver(ctx context.Context) error {
	resumed, err := d.resume()
	if err != nil {
		return err
	}
	if !resumed {
		if err := d.start(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(d.publishState(nodestate.Ready, "", ""), d.announce()); err != nil {
		return err
	}
	d.Log.Info("ready", "root", d.Root, "version", d.Spec.Version, "gpus", d.Spec.State.Ngpus, "resumed", resumed)
	return nil
}

// start waits for the simulated load time, and mounts a new driver.
func (d *driver) start(ctx context.Context) error {
	if err := d.withdraw(); err != nil {
		return err
	}
	message := "the simulated driver is being made"
	if d.BootDelay > 0 {
		message = fmt.Sprintf("the simulated driver takes %v to come (--boot-delay)", d.BootDelay)
		d.Log.Info("waiting as a driver does that takes a while", "delay", d.BootDelay)
	}
	if err := d.publishState(nodestate.Waiting, ReasonStarting, message); err != nil {
		return err
	}
	delay := time.NewTimer(d.BootDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return d.mount()
}

// check returns an error if the driver root is no longer mounted at its place.
func (d *driver) check() error {
	ours, err := root.FileSystem.Is(d.Root)
	if err == nil && !ours {
		err = fmt.Errorf("%s: %w; started again, gpusim serve mounts it again", d.Root, ErrTaken)
	}
	return err
}

// end cleans up after SIGTERM.
func (d *driver) end() error {
	if err := d.withdraw(); err != nil {
		return err
	}
	there, err := root.FileSystem.Is(d.Root)
	if err != nil {
		return err
	}
	if !there {
		return d.publishState(nodestate.Waiting, ReasonStopped, "the driver's container ended before there was a driver")
	}
	if d.inUse() {
		d.Log.Info("the driver is in use and stays; the next gpusim serve goes on with it", "root", d.Root)
		return d.publishState(nodestate.Degraded, ReasonUnattended, "the driver's container has ended; the driver stays, for it is in use")
	}
	// Not Unload: containers may have its files without using them right now.
	if err := root.FileSystem.Remove(d.Root); err != nil {
		return err
	}
	d.Log.Info("nobody used the driver: unloaded", "root", d.Root)
	return d.publishState(nodestate.Waiting, ReasonStopped, "the driver's container has ended, and nobody used the driver: it was unloaded")
}

// publishState publishes the driver's state.
func (d *driver) publishState(phase nodestate.Phase, reason gpu.Reason, message string) error {
	s := nodestate.State{Component: nodestate.Driver, Phase: phase, Reason: reason, Message: message}
	if phase == nodestate.Ready || reason == ReasonUnattended {
		s.Driver = &d.shared
	}
	d.mu.Lock()
	d.said = s
	d.mu.Unlock()
	return nodestate.Write(filepath.Join(d.StateDir, string(nodestate.Driver)), s)
}

// ready returns why the driver is not ready; nil if it is.
func (d *driver) ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.said.Phase {
	case nodestate.Ready:
		return nil
	case "":
		return errors.New("starting")
	}
	return fmt.Errorf("%s: %s", d.said.Reason, d.said.Message)
}

// announce writes the file that NVIDIA's driver containers write once nvidia-smi works
// in them, and remove before they end. Its lines, and a colon in them, are those of the
// startup probe in NVIDIA's gpu-operator (state-driver).
const (
	readyName = ".driver-ctr-ready"
	readyText = "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: false\n"
)

func (d *driver) announce() error {
	return record.Write(filepath.Join(d.OutputDir, readyName), []byte(readyText))
}

func (d *driver) withdraw() error { return record.Remove(filepath.Join(d.OutputDir, readyName)) }

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
