package runtimes

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

	"github.com/gpuready/gpuready/test/built"
	"github.com/gpuready/gpuready/test/node"
)

// patience is how long anything may take before a test calls it hung.
const patience = time.Minute

// Root is where a node's host is seen as a DaemonSet sees it, for --host-root. What
// is mounted on the host later is seen there too, not the other way round.
const Root = "/run/.node/host"

// bin is where a host has its runtime's programs, before all others in its PATH.
const bin = "/usr/local/bin"

// Options say which host is wanted.
type Options struct {
	Kind   Kind
	Config map[string][]byte // host path: content; what is not named, the runtime has its default for
	GPUs   string            // profile of a simulated driver at node.DriverRoot; "": there is none
}

// Spec is a container that is run to its end.
type Spec struct {
	Args    []string // of a program in the image: Probe, Vectoradd
	Env     []string // NAME=value
	CDI     []string // qualified names of devices
	Handler string   // the OCI runtime by its name in the configuration; "": the default
	// Namespace is the pod's, where there are pods; "": default.
	Namespace   string
	Annotations map[string]string // the pod's
}

// Status is what a runtime says of itself.
type Status struct {
	Version  string
	Handlers []string // by name, in order; the default is "" too where a runtime says so
	Default  string
	CDI      bool
}

// Host is a node with a runtime. Its methods are not to be called side by side.
type Host struct {
	t      testing.TB
	kind   Kind
	engine engine
	daemon *daemon // nil: the runtime has none
	// Images that the runtime has; they outlive its restarts.
	loaded bool
}

// engine is how one kind of runtime is used.
type engine interface {
	// command is the daemon's program and its arguments; none: there is no daemon.
	command() []string
	// ready waits until the daemon serves.
	ready(ctx context.Context) error
	// load gives it an image's archive.
	load(ctx context.Context, file string) error
	run(ctx context.Context, s Spec) (output string, err error)
	begin(ctx context.Context, s Spec) error
	status(ctx context.Context) (Status, error)
	close() error
}

// Start makes the node that this process is in (node.Enter) a host with a runtime,
// which runs, and has the image with Probe and Vectoradd.
func Start(t testing.TB, o Options) *Host {
	t.Helper()
	h := New(t, o)
	require.NoError(t, h.Start(t.Context()))
	return h
}

// New is Start but for the runtime, which is not started.
func New(t testing.TB, o Options) *Host {
	t.Helper()
	if !node.Inside() {
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
		built.Gpusim(t, "up", "--root", node.DriverRoot, "--profile", o.GPUs)
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

// furnish lays out the host's files and mounts.
func (h *Host) furnish(o Options) error {
	all, err := inherited()
	if err != nil {
		return err
	}
	for _, folder := range slices.Backward(all[o.Kind]) { // the first has the last word
		if err := link(folder); err != nil {
			return err
		}
	}
	// Images are unpacked as overlays, and an overlay is not laid over another's changes.
	for _, dir := range []string{"/var/lib/containerd", "/var/lib/docker", "/var/lib/containers", work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=711"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/etc/containerd", "/etc/docker", "/etc/containers", "/etc/cni", "/etc/cdi"} {
		if err := os.RemoveAll(dir); err != nil { // what the machine has there is none of the host's
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
	return seenBelow()
}

// seenBelow lets the whole host be seen at Root.
func seenBelow() error {
	if err := os.MkdirAll(Root, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		from, at string
		flags    uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_SHARED},
		{"/", Root, unix.MS_REC | unix.MS_BIND},
		{"", Root, unix.MS_REC | unix.MS_SLAVE},
	} {
		if err := unix.Mount(step.from, step.at, "", step.flags, ""); err != nil {
			return fmt.Errorf("show the host at %s: %w", Root, err)
		}
	}
	return nil
}

// link makes a folder's programs those of the host.
func link(folder string) error {
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

// Restart does what systemd does for RestartUnit; other units than the runtime's are
// not there.
func (h *Host) Restart(ctx context.Context, unit string) error {
	if unit != h.Unit() {
		return fmt.Errorf("Unit %s not found.", unit) //nolint:staticcheck,revive // systemd's own words
	}
	if err := h.Stop(ctx); err != nil {
		return err
	}
	return h.Start(ctx)
}

// Act is Restart and Reload as a stand-in for systemd calls them: with "restart" or
// "reload".
func (h *Host) Act(unit, verb string) error {
	if verb == "reload" && unit == h.Unit() {
		return h.Reload()
	}
	return h.Restart(context.Background(), unit)
}

// Unit is the runtime's systemd unit, "" where there is no daemon.
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

// Run runs a container to its end and returns what it printed. An error says how it
// failed or that it could not be run.
func (h *Host) Run(ctx context.Context, s Spec) (output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.engine.run(ctx, s)
}

// Begin starts a container that stays as long as it likes.
func (h *Host) Begin(ctx context.Context, s Spec) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.engine.begin(ctx, s)
}

// Keep starts a container in a pod and leaves it running until it is removed.
func (h *Host) Keep(ctx context.Context, s Spec) (remove func(context.Context) error, err error) {
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

// Status asks the runtime, not its configuration.
func (h *Host) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.engine.status(ctx)
}

// Output runs a program of the host, "containerd config dump", and returns what it
// prints on standard output.
func (h *Host) Output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	cmd.Env = environment()
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", name, err, exit.Stderr)
	}
	return out, err
}

// Log is what the daemon has printed until now.
func (h *Host) Log() string { return h.daemon.log() }
