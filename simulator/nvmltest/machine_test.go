// Package nvmltest tries the simulated libnvidia-ml with programs that nobody
// here wrote: go-nvml, go-nvlib and go-gpuallocator. A process can load only one
// libnvidia-ml ever, so each test runs its body in a process of its own.
package nvmltest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/lab/built"
)

const version = "580.95.05"

// machine is a driver root with nothing but what libnvidia-ml looks at: itself,
// the state beside it, and device nodes (plain files: they can be opened).
type machine struct {
	root, lib string
}

func (m machine) library() string   { return filepath.Join(m.lib, "libnvidia-ml.so.1") }
func (m machine) statePath() string { return filepath.Join(m.lib, "libnvidia-gpusim.so."+version) }
func (m machine) node(name string) string {
	return filepath.Join(m.root, "dev", name)
}

func newMachine(t *testing.T, name string) machine {
	t.Helper()
	if _, err := os.Lstat("/dev/nvidiactl"); err == nil && os.Geteuid() != 0 {
		t.Skip("/dev/nvidiactl exists, and only root can hide it: the library would look at this machine's device nodes")
	}
	m := machine{root: t.TempDir()}
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	m.lib = filepath.Join(m.root, "usr/lib", triplet)
	require.NoError(t, os.MkdirAll(m.lib, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(m.root, "dev"), 0o755))
	p, err := profile.Get(name)
	require.NoError(t, err)
	s, err := p.State(profile.Options{DriverVersion: version})
	require.NoError(t, err)
	require.NoError(t, state.Create(m.statePath(), s))
	library, err := os.ReadFile(built.Path(t, "lib/libnvidia-ml.so"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(m.lib, "libnvidia-ml.so."+version), library, 0o755))
	require.NoError(t, os.Symlink("libnvidia-ml.so."+version, m.library()))
	m.addNode(t, "nvidiactl")
	for _, gpu := range s.GPUs() {
		m.addNode(t, fmt.Sprintf("nvidia%d", gpu.Minor))
	}
	return m
}

func (m machine) addNode(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(m.node(name)), 0o755))
	require.NoError(t, os.WriteFile(m.node(name), nil, 0o666))
}

// addCapability makes the nodes of the compute instance and its GPU instance,
// numbered as /proc/driver/nvidia-caps/mig-minors numbers them.
func (m machine) addCapability(t *testing.T, minor, gi, ci int) {
	t.Helper()
	number := 3 + (minor*15+gi)*9
	m.addNode(t, fmt.Sprintf("nvidia-caps/nvidia-cap%d", number))
	m.addNode(t, fmt.Sprintf("nvidia-caps/nvidia-cap%d", number+1+ci))
}

// change does to the state what gpusim would, while others have it mapped.
func (m machine) change(t *testing.T, change func(*state.State), events ...state.Event) {
	t.Helper()
	f, err := state.Open(m.statePath())
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, f.Update(func(s *state.State) error { change(s); return nil }))
	if len(events) > 0 {
		require.NoError(t, f.Emit(events...))
	}
}

func (m machine) emit(t *testing.T, events ...state.Event) {
	t.Helper()
	m.change(t, func(*state.State) {}, events...)
}

// child is set in the process that runs a body: "test name|driver root".
const child = "NVMLTEST_CHILD"

// hidden is set as well if it has mounts of its own.
const hidden = "NVMLTEST_HIDDEN"

// TestMain gives a child of root an empty /dev, so that it does not matter
// whether this machine has an NVIDIA driver of its own.
func TestMain(m *testing.M) {
	if os.Getenv(child) != "" && os.Getenv(hidden) != "" {
		err := errors.Join(
			syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
			syscall.Mount("tmpfs", "/dev", "tmpfs", 0, ""),
			os.WriteFile("/dev/null", nil, 0o666)) // os/exec opens it
		if err != nil {
			fmt.Fprintln(os.Stderr, "hide /dev:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// alone makes a machine of the profile and runs body in a process that has not
// loaded a libnvidia-ml yet. prepare runs before that, in this process.
func alone(t *testing.T, profile string, prepare func(machine), body func(*testing.T, machine, nvml.Interface)) {
	t.Helper()
	if name, root, ok := strings.Cut(os.Getenv(child), "|"); ok {
		if name != t.Name() {
			t.Skip("another test's process")
		}
		libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
		require.NoError(t, err)
		m := machine{root, libs[0]}
		body(t, m, nvml.New(nvml.WithLibraryPath(m.library())))
		return
	}
	m := newMachine(t, profile)
	if prepare != nil {
		prepare(m)
	}
	m.run(t)
}

func (m machine) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.count=1", "-test.run="+strings.Join(pattern, "/"),
		"-update="+flag.Lookup("update").Value.String())
	// The race detector would have every child sleep for a second before it ends.
	cmd.Env = append(os.Environ(), child+"="+t.Name()+"|"+m.root, "GORACE=atexit_sleep_ms=0")
	if os.Geteuid() == 0 {
		cmd.Env = append(cmd.Env, hidden+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, bytes.Contains(out, []byte("--- PASS: "+t.Name()+" ")), "the body did not run:\n%s", out)
}

// readOnly makes a folder read-only for this process, which root could otherwise write to.
func readOnly(t *testing.T, folder string) {
	t.Helper()
	require.NoError(t, syscall.Mount(folder, folder, "", syscall.MS_BIND, ""))
	require.NoError(t, syscall.Mount("", folder, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
}

func initialised(t *testing.T, lib nvml.Interface) {
	t.Helper()
	require.Equal(t, nvml.SUCCESS, lib.Init())
	t.Cleanup(func() { require.Equal(t, nvml.SUCCESS, lib.Shutdown()) })
}

func handle(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	device, ret := lib.DeviceGetHandleByIndex(index)
	require.Equal(t, nvml.SUCCESS, ret)
	return device
}

// must unwraps what a call of go-nvml returned.
func must[T any](t *testing.T) func(T, nvml.Return) T {
	return func(value T, ret nvml.Return) T {
		t.Helper()
		require.Equal(t, nvml.SUCCESS, ret)
		return value
	}
}
