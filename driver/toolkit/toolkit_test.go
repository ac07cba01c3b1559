package toolkit

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	release = "5.14.0-427.el9.x86_64"
	version = "580.95.05"
)

// module returns an ELF file with the parts of a kernel module that are read. The last of
// several values counts.
func module(t testing.TB, name, version, release string, fields ...string) []byte {
	t.Helper()
	fields = append([]string{"name=" + strings.ReplaceAll(name, "-", "_"), "version=" + version, "vermagic=" + release + " SMP", "license=Dual MIT/GPL"}, fields...)
	info := strings.Join(fields, "\x00") + "\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	header := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 2}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	header.Shoff = 64 + uint64(len(info)+len(names))
	var b bytes.Buffer
	for _, part := range []any{
		header, []byte(info + names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(info)), Addralign: 1},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: 64 + uint64(len(info)), Size: uint64(len(names)), Addralign: 1},
	} {
		require.NoError(t, binary.Write(&b, binary.LittleEndian, part))
	}
	return b.Bytes()
}

// newMain returns the driver container's side with a shared folder.
func newMain(t testing.TB) *Client {
	t.Helper()
	source := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(source, "nvidia"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(source, "nvidia/nv.c"), []byte("int x;\n"), 0o644))
	program := filepath.Join(t.TempDir(), "gpu-driver")
	require.NoError(t, os.WriteFile(program, []byte("the program"), 0o755))
	return &Client{
		Dir: t.TempDir(), Program: program, Source: source, Work: t.TempDir(),
		Request: Request{Release: release, Version: version, Kind: "open", Modules: []string{"nvidia", "nvidia-uvm"}},
		Start:   time.Minute, Silence: time.Minute,
	}
}

// builds returns a Build that creates the requested modules.
func builds(t testing.TB, times *atomic.Int32) func(context.Context, Request, string) (string, error) {
	return func(_ context.Context, r Request, source string) (string, error) {
		times.Add(1)
		if _, err := os.Stat(filepath.Join(source, "nvidia/nv.c")); err != nil {
			return "", err
		}
		dir, err := os.MkdirTemp(t.TempDir(), "built-")
		for _, name := range r.Modules {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name+".ko"), module(t, name, r.Version, r.Release), 0o644))
		}
		return dir, err
	}
}

// sideCar runs the other side until the test ends.
func sideCar(t testing.TB, s *Builder) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// refused requires that an error has a reason.
func refused(t testing.TB, err error, reason gpu.Reason, text string) {
	t.Helper()
	e, ok := errors.AsType[*kernel.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, reason, e.Reason, "%v", err)
	require.ErrorContains(t, err, text)
}

func empty(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestModulesAreDelivered(t *testing.T) {
	m := newMain(t)
	var times atomic.Int32
	stop := sideCar(t, &Builder{Dir: m.Dir, Build: builds(t, &times)})
	require.NoError(t, m.Prepare(t.Context()))
	dir, err := m.Wait(t.Context())
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "nvidia-uvm.ko"))
	require.NoError(t, err)
	require.Equal(t, module(t, "nvidia-uvm", version, release), data)
	program, err := os.ReadFile(filepath.Join(m.Dir, programName))
	require.NoError(t, err)
	require.Equal(t, "the program", string(program))
	info, err := os.Stat(filepath.Join(m.Dir, programName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode())

	// Each of the containers may be restarted: nothing is built twice.
	again := *m
	require.NoError(t, again.Prepare(t.Context()))
	_, err = again.Wait(t.Context())
	require.NoError(t, err)
	stop()
	sideCar(t, &Builder{Dir: m.Dir, Build: builds(t, &times)})
	_, err = again.Wait(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, times.Load())

	// Another driver: the old modules are not taken for its.
	other := *m
	other.Request.Version = "590.10"
	require.NoError(t, other.Prepare(t.Context()))
	_, err = other.Wait(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, times.Load())
}

func TestOtherContainersKnowThatTheirModulesAreBuilt(t *testing.T) {
	m := newMain(t)
	m.Request.Modules = append(m.Request.Modules, "nvidia-fs", "gdrdrv")
	sideCar(t, &Builder{Dir: m.Dir, Build: func(ctx context.Context, r Request, source string) (string, error) {
		dir, err := builds(t, new(atomic.Int32))(ctx, r, source)
		return dir, errors.Join(err, os.WriteFile(filepath.Join(dir, "gdrdrv.ko"), module(t, "gdrdrv", "2.5", release), 0o644))
	}})
	require.NoError(t, m.Prepare(t.Context()))
	_, err := m.Wait(t.Context())
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(m.Dir, "nvidia_fs_built"))
	require.FileExists(t, filepath.Join(m.Dir, "gdrcopy_built"))
}

func TestFailedBuildEndsTheWaitAndIsTriedAgain(t *testing.T) {
	m := newMain(t)
	var times atomic.Int32
	sideCar(t, &Builder{Dir: m.Dir, Build: func(ctx context.Context, r Request, source string) (string, error) {
		if times.Load() == 0 {
			times.Add(1)
			return "", &kernel.Error{Reason: build.ReasonBuildFailed, Message: "nvidia/nv.c:3: too few arguments"}
		}
		return builds(t, &times)(ctx, r, source)
	}})
	require.NoError(t, m.Prepare(t.Context()))
	_, err := m.Wait(t.Context())
	refused(t, err, build.ReasonBuildFailed, "in the Driver Toolkit: nvidia/nv.c:3: too few arguments")
	require.NoError(t, m.Prepare(t.Context()))
	_, err = m.Wait(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, times.Load())
}

func TestBuildForAnOldRequestIsEnded(t *testing.T) {
	m := newMain(t)
	began := make(chan string, 2)
	sideCar(t, &Builder{Dir: m.Dir, Beat: time.Millisecond, Build: func(ctx context.Context, r Request, source string) (string, error) {
		began <- r.Version
		if r.Version == version {
			<-ctx.Done()
			return "", ctx.Err()
		}
		return builds(t, new(atomic.Int32))(ctx, r, source)
	}})
	require.NoError(t, m.Prepare(t.Context()))
	require.Equal(t, version, <-began)
	m.Request.Version = "590.10"
	require.NoError(t, m.Prepare(t.Context()))
	require.Equal(t, "590.10", <-began)
	_, err := m.Wait(t.Context())
	require.NoError(t, err)
}

func TestHeartbeatsExtendTheWait(t *testing.T) {
	m := newMain(t)
	m.Silence = 2 * time.Second // a busy disk takes a second to write a sign
	sideCar(t, &Builder{Dir: m.Dir, Beat: 5 * time.Millisecond, Build: func(ctx context.Context, r Request, source string) (string, error) {
		select {
		case <-time.After(m.Silence + 500*time.Millisecond):
		case <-ctx.Done():
		}
		return builds(t, new(atomic.Int32))(ctx, r, source)
	}})
	require.NoError(t, m.Prepare(t.Context()))
	_, err := m.Wait(t.Context())
	require.NoError(t, err)
}

func TestSilenceEndsTheWait(t *testing.T) {
	m := newMain(t)
	m.Start, m.Silence = 20*time.Millisecond, 20*time.Millisecond
	require.NoError(t, m.Prepare(t.Context()))
	_, err := m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "has not begun to build within 20ms")
	require.NoError(t, writeResponse(m.Dir, startedName, response{ID: m.id, Beat: 1}))
	_, err = m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "has written no heartbeat for 20ms during the build")
	// A response to an earlier request is ignored.
	require.NoError(t, writeResponse(m.Dir, builtName, response{ID: "another"}))
	require.NoError(t, os.WriteFile(filepath.Join(m.Dir, failedName), nil, 0o644))
	_, err = m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "has written no heartbeat")

	m.Silence = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestBrokenToolkitIsReported(t *testing.T) {
	m := newMain(t)
	m.ImageMissing, m.OSVersion = true, "418.94.1"
	refused(t, m.Prepare(t.Context()), ReasonToolkitBroken, "OpenShift has no Driver Toolkit image for RHCOS 418.94.1")
	empty(t, m.Dir)
	m.ImageMissing = false
	require.NoError(t, m.Prepare(t.Context()))

	// NVIDIA's own side-car writes an empty file.
	require.NoError(t, os.WriteFile(filepath.Join(m.Dir, brokenName), nil, 0o644))
	_, err := m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "its image is of another kernel than "+release)

	// It does not write the file again.
	require.NoError(t, m.Prepare(t.Context()))
	_, err = m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "its image is of another kernel than "+release)

	m.Request.Version = "590.10"
	require.NoError(t, m.Prepare(t.Context()))
	sideCar(t, &Builder{Dir: m.Dir, Root: t.TempDir(), Work: t.TempDir()})
	_, err = m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "its image has no headers of kernel "+release)
}

func TestInvalidRequestIsRejected(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"Env":      func(dir string) error { return os.WriteFile(filepath.Join(dir, envName), []byte("A=$(id)\n"), 0o644) },
		"Prepared": func(dir string) error { return os.WriteFile(filepath.Join(dir, preparedName), nil, 0o644) },
		"FIFO": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, envName)), syscall.Mkfifo(filepath.Join(dir, envName), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMain(t)
			require.NoError(t, m.Prepare(t.Context()))
			require.NoError(t, spoil(m.Dir))
			sideCar(t, &Builder{Dir: m.Dir, Build: builds(t, new(atomic.Int32))})
			_, err := m.Wait(t.Context())
			refused(t, err, ReasonToolkitBroken, "the Driver Toolkit cannot build: ")
		})
	}
}

func TestFullSharedFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts a small disk")
	}
	m := newMain(t)
	require.NoError(t, unix.Mount("tmpfs", m.Dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(m.Dir, unix.MNT_DETACH)) })
	large := bytes.Repeat([]byte("x"), 100<<10)
	require.NoError(t, os.WriteFile(filepath.Join(m.Source, "large.c"), large, 0o644))
	refused(t, m.Prepare(t.Context()), ReasonToolkitBroken, "is full")
	require.NoError(t, os.Remove(filepath.Join(m.Source, "large.c")))
	m.Request.Sources = ""
	require.NoError(t, m.Prepare(t.Context()))
	sideCar(t, &Builder{Dir: m.Dir, Build: func(ctx context.Context, r Request, source string) (string, error) {
		dir, err := builds(t, new(atomic.Int32))(ctx, r, source)
		return dir, errors.Join(err, os.WriteFile(filepath.Join(dir, "nvidia.ko"), large, 0o644))
	}})
	_, err := m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "is full: ")
}
