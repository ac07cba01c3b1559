package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
	"github.com/gpuready/gpuready/toolkit/setup"
)

func TestMain(m *testing.M) {
	if runtimetest.EnteredNRI() {
		return
	}
	leak.Main(m)
}

const (
	patience = 30 * time.Second
	version  = "580.95.05"
	libDir   = "/usr/lib64"
)

// machine is a host in a directory, with a driver that can appear and vanish.
type machine struct {
	dir  string
	t    *testing.T
	conf setup.Config

	mu      sync.Mutex
	source  *gputest.Source
	openErr error
	open    func() gpu.Source // nil: source
}

func newMachine(t *testing.T, s gpu.Snapshot) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), source: gputest.New(s)}
	pci := "/sys/bus/pci/devices/0000:10:00.0"
	for _, d := range []string{"/run", "/var", "/dev", "/proc", "/usr/local", libDir, pci} {
		require.NoError(t, os.MkdirAll(m.dir+d, 0o755))
	}
	require.NoError(t, os.WriteFile(m.dir+pci+"/vendor", []byte("0x10de\n"), 0o444))
	require.NoError(t, os.WriteFile(m.dir+pci+"/class", []byte("0x030200\n"), 0o444))
	require.NoError(t, os.Symlink("/run", m.dir+"/var/run"))
	hook := t.TempDir() + "/gpu-cdi-hook"
	require.NoError(t, os.WriteFile(hook, []byte("\x7fELF hook"), 0o755))
	m.conf = setup.Config{HostRoot: m.dir, CDIDir: "/var/run/cdi", InstallDir: "/usr/local/nvidia/gpuready", StateDir: "/run/nvidia/gpuready", HookProgram: hook, NRISocket: nri.DefaultSocket}
	return m
}

// Find implements setup.Driver, together with Open.
func (m *machine) Find(root string) (string, error) {
	p := filepath.Join(m.dir, root, libDir, "libnvidia-ml.so."+version)
	if _, err := os.Stat(p); err != nil {
		return "", fmt.Errorf("%w: no libnvidia-ml.so.1 below %s", gpu.ErrNoDriver, root)
	}
	return p, nil
}

func (m *machine) Open(root string) (gpu.Source, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.Find(root); err != nil {
		return nil, err
	}
	if m.openErr != nil {
		return nil, m.openErr
	}
	if m.open != nil {
		return m.open(), nil
	}
	return shared{m.source}, nil
}

// shared can be closed and opened again.
type shared struct{ *gputest.Source }

func (shared) Close() error { return nil }

func (m *machine) failOpen(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.openErr = err
}

// install installs the driver on the machine, its libraries last.
func (m *machine) install(root string, gpus int) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(m.dir+"/proc/devices", []byte("Character devices:\n195 nvidia\n511 nvidia-uvm\n234 nvidia-caps\n"), 0o644))
	require.NoError(m.t, os.MkdirAll(m.dir+root+"/dev", 0o755))
	for i := range gpus {
		m.mknod(fmt.Sprintf("%s/dev/nvidia%d", root, i), 195, i)
	}
	require.NoError(m.t, os.MkdirAll(m.dir+root+libDir, 0o755))
	for _, l := range []string{"libcuda", "libnvidia-ml"} {
		m.library(root, l)
	}
}

func (m *machine) library(root, name string) {
	m.t.Helper()
	file := m.dir + root + libDir + "/" + name + ".so." + version
	cmd := exec.Command("gcc", "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,"+name+".so.1", "-o", file+".new")
	cmd.Stdin = strings.NewReader("int x;")
	out, err := cmd.CombinedOutput()
	require.NoError(m.t, err, string(out))
	require.NoError(m.t, os.Rename(file+".new", file))
}

func (m *machine) mknod(path string, major, minor int) {
	m.t.Helper()
	if err := syscall.Mknod(m.dir+path, syscall.S_IFCHR|0o666, major<<8|minor); err != nil {
		m.t.Skipf("mknod is not permitted: %v", err)
	}
}

func (m *machine) toolkit() *setup.Toolkit {
	m.t.Helper()
	t, err := setup.New(m.conf, m)
	require.NoError(m.t, err)
	m.t.Cleanup(func() { _ = t.Close() })
	return t
}

// run starts the daemon. It returns its log and a function that stops the daemon and
// returns its error.
func (m *machine) run() (stop func() error, log *syncWriter) {
	m.t.Helper()
	log = &syncWriter{}
	d := New(m.toolkit(), slog.New(slog.NewTextHandler(log, nil)), NewMetrics(prometheus.NewRegistry()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	once := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the daemon does not end")
		}
	})
	m.t.Cleanup(func() {
		_ = once()
		if m.t.Failed() {
			m.t.Log("the daemon's log:\n" + log.String())
		}
	})
	return once, log
}

type syncWriter struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *syncWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// await waits for a state of the daemon.
func (m *machine) await(what string, done func(nodestate.State) bool) nodestate.State {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	boot, err := nodestate.BootIDAt(m.dir)
	require.NoError(m.t, err)
	var last nodestate.State
	err = nodestate.WatchBoot(ctx, m.dir+"/run/nvidia/gpuready/toolkit", boot, func(s nodestate.State, err error) {
		if last = s; err == nil && done(s) {
			cancel()
		}
	})
	require.ErrorIs(m.t, err, context.Canceled, "%s; the last state was %+v", what, last)
	return last
}

func phase(p nodestate.Phase) func(nodestate.State) bool {
	return func(s nodestate.State) bool { return s.Phase == p }
}

func devices(s nodestate.State, kind string) []string {
	if s.Toolkit != nil {
		for _, f := range s.Toolkit.Specs {
			if f.Kind == kind {
				return f.Devices
			}
		}
	}
	return nil
}

// snapshot returns every path of the host, with inode and time, to detect any change.
func (m *machine) snapshot() []string {
	m.t.Helper()
	var all []string
	require.NoError(m.t, filepath.WalkDir(m.dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && !e.IsDir() {
			st, _ := info.Sys().(*syscall.Stat_t)
			all = append(all, fmt.Sprint(p, st.Ino, info.ModTime()))
		}
		return err
	}))
	return all
}

// tmpfs mounts a small file system at a path of the host.
func (m *machine) tmpfs(path, options string, flags uintptr) {
	m.t.Helper()
	if os.Getuid() != 0 {
		m.t.Skip("mounting needs root")
	}
	require.NoError(m.t, os.MkdirAll(m.dir+path, 0o755))
	if err := syscall.Mount("tmpfs", m.dir+path, "tmpfs", flags, options); err != nil {
		m.t.Skipf("mounting is not permitted: %v", err)
	}
	m.t.Cleanup(func() { require.NoError(m.t, syscall.Unmount(m.dir+path, syscall.MNT_DETACH)) })
}
