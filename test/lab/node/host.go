package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/built"
)

// patience limits how long anything may take before it counts as hung.
const patience = time.Minute

// HostRoot is the path of a node's host as a DaemonSet sees it, for --host-root. Later mounts on the
// host appear there too, but not the other way round.
const HostRoot = "/run/.node/host"

// bin is the folder of a host's runtime programs, first in its PATH.
const bin = "/usr/local/bin"

// HostOptions describe a host.
type HostOptions struct {
	Kind   Kind
	Config map[string][]byte // host path: content; for other files the runtime has its default
	GPUs   string            // profile of a simulated driver at node.DriverRoot; "": none
}

// Spec describes a container that is run to its end.
type Spec struct {
	Args    []string // starting with a program of the image: Probe, Vectoradd
	Env     []string // NAME=value
	CDI     []string // qualified names of devices
	Handler string   // the OCI runtime by its name in the configuration; "": the default
	// Namespace is the pod's namespace, for runtimes with pods; "": default.
	Namespace   string
	Annotations map[string]string // the pod's
}

// RuntimeStatus is a runtime's report about itself.
type RuntimeStatus struct {
	Version  string
	Handlers []string // by name, in order; includes "" if the runtime lists the default
	Default  string
	CDI      bool
}

// Host is a node with a runtime. Its methods must not be called concurrently.
type Host struct {
	t      testing.TB
	kind   Kind
	engine engine
	daemon *daemon // nil: the runtime has none
	// loaded reports whether the runtime has the images, which outlive its restarts.
	loaded bool
}

// engine is a client of one kind of runtime.
type engine interface {
	// command returns the daemon's program and its arguments; none: there is no daemon.
	command() []string
	// ready waits until the daemon serves.
	ready(ctx context.Context) error
	// load loads an image's archive.
	load(ctx context.Context, file string) error
	run(ctx context.Context, s Spec) (output string, err error)
	begin(ctx context.Context, s Spec) error
	status(ctx context.Context) (RuntimeStatus, error)
	close() error
}

// StartHost turns the node of this process (node.Enter) into a host with a running runtime, which has
// the image with Probe and Vectoradd.
func StartHost(t testing.TB, o HostOptions) *Host {
	t.Helper()
	h := CreateHost(t, o)
	require.NoError(t, h.Start(t.Context()))
	return h
}

// CreateHost is like Start, but does not start the runtime.
func CreateHost(t testing.TB, o HostOptions) *Host {
	t.Helper()
	if !Inside() {
		t.Fatal("runtimes: a host is made inside a node; see node.Enter")
	}
	h := &Host{t: t, kind: o.Kind}
	require.NoError(t, h.furnish(o))
	switch o.Kind {
	case Docker:
		h.engine = newDocker()
	case Podman:
		p := &podman{}
		require.NoError(t, p.furnish())
		h.engine = p
	default:
		cri, err := newContainerd()
		require.NoError(t, err)
		h.engine = cri
	}
	if argv := h.engine.command(); len(argv) > 0 {
		h.daemon = &daemon{argv: argv}
	}
	t.Cleanup(h.close)
	if o.GPUs != "" {
		built.Gpusim(t, "up", "--root", DriverRoot, "--profile", o.GPUs)
	}
	return h
}

func (h *Host) close() {
	if h.daemon != nil {
		h.daemon.kill()
		if h.t.Failed() {
			h.t.Logf("%s printed:\n%s", h.kind, h.daemon.complaints())
		}
	}
	require.NoError(h.t, h.engine.close())
}

// furnish creates the host's files and mounts.
func (h *Host) furnish(o HostOptions) error {
	all, err := inherited()
	if err != nil {
		return err
	}
	for _, folder := range slices.Backward(all[o.Kind]) { // the first one takes precedence
		if err := linkPrograms(folder); err != nil {
			return err
		}
	}
	// Images are unpacked as overlays, which cannot be on another overlay.
	for _, dir := range []string{"/var/lib/containerd", "/var/lib/docker", "/var/lib/containers", work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=711"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/etc/containerd", "/etc/docker", "/etc/containers", "/etc/cni", "/etc/cdi"} {
		if err := os.RemoveAll(dir); err != nil { // the machine's files there are not the host's
			return err
		}
	}
	for path, content := range o.Config {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return mountRoot()
}

// mountRoot makes the whole host visible at Root.
func mountRoot() error {
	if err := os.MkdirAll(HostRoot, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		from, at string
		flags    uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_SHARED},
		{"/", HostRoot, unix.MS_REC | unix.MS_BIND},
		{"", HostRoot, unix.MS_REC | unix.MS_SLAVE},
	} {
		if err := unix.Mount(step.from, step.at, "", step.flags, ""); err != nil {
			return fmt.Errorf("show the host at %s: %w", HostRoot, err)
		}
	}
	return nil
}

// linkPrograms links a folder's programs into the host.
func linkPrograms(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(bin, e.Name())
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(filepath.Join(folder, e.Name()), name); err != nil {
			return err
		}
	}
	return nil
}

// Start starts the runtime and waits until it serves.
func (h *Host) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if h.daemon != nil {
		if err := h.daemon.start(); err != nil {
			return err
		}
		if err := h.daemon.whileItRuns(ctx, h.engine.ready); err != nil {
			return fmt.Errorf("%s does not serve: %w; it printed:\n%s", h.kind, err, h.daemon.complaints())
		}
	}
	if h.loaded {
		return nil
	}
	for _, make := range []func() (string, error){pauseImage, testImage} {
		file, err := make()
		if err != nil {
			return err
		}
		if err := h.engine.load(ctx, file); err != nil {
			return fmt.Errorf("give %s its image: %w", h.kind, err)
		}
	}
	h.loaded = true
	return nil
}

// Stop ends the runtime as systemd does, and waits; containers stay.
func (h *Host) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.daemon.stop(ctx)
}

// Signal sends the runtime a signal.
func (h *Host) Signal(s syscall.Signal) error { return h.daemon.signal(s) }

// Kill ends the runtime with SIGKILL.
func (h *Host) Kill() { h.daemon.kill() }

// Restart does what systemd does for RestartUnit. It knows only the runtime's unit.
func (h *Host) Restart(ctx context.Context, unit string) error {
	if unit != h.Unit() {
		return fmt.Errorf("Unit %s not found.", unit) //nolint:staticcheck,revive // systemd's own words
	}
	if err := h.Stop(ctx); err != nil {
		return err
	}
	return h.Start(ctx)
}

// ActOnUnit calls Restart or Reload, for a stand-in for systemd; verb is "restart" or "reload".
func (h *Host) ActOnUnit(unit, verb string) error {
	if verb == "reload" && unit == h.Unit() {
		return h.Reload()
	}
	return h.Restart(context.Background(), unit)
}

// Unit returns the runtime's systemd unit, or "" if it has no daemon.
func (h *Host) Unit() string {
	switch h.kind {
	case Podman:
		return ""
	case Docker:
		return "docker.service"
	}
	return "containerd.service"
}

// Reload sends SIGHUP.
func (h *Host) Reload() error { return h.daemon.signal(unix.SIGHUP) }

// Run runs a container to its end and returns its output. It returns an error if the container
// failed or could not be run.
func (h *Host) Run(ctx context.Context, s Spec) (output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.engine.run(ctx, s)
}

// StartContainer starts a container and leaves it running.
func (h *Host) StartContainer(ctx context.Context, s Spec) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.engine.begin(ctx, s)
}

// StartPod starts a container in a pod and leaves it running until remove is called.
func (h *Host) StartPod(ctx context.Context, s Spec) (remove func(context.Context) error, err error) {
	cri, ok := h.engine.(*containerd)
	if !ok {
		return nil, fmt.Errorf("%s has no pods", h.kind)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	kept, err := cri.launch(ctx, s)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return cri.remove(ctx, kept) }, nil
}

// Status queries the runtime rather than its configuration.
func (h *Host) Status(ctx context.Context) (RuntimeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.engine.status(ctx)
}

// Output runs a program of the host, such as "containerd config dump", and returns its standard
// output.
func (h *Host) Output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	cmd.Env = environment()
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", name, err, exit.Stderr)
	}
	return out, err
}
