package serve

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const release = "5.14.0-427.el9.x86_64"

// module returns an ELF file with the parts of a kernel module that are read.
func module(t *testing.T, name string, depends ...string) []byte {
	t.Helper()
	info := "name=" + name + "\x00version=580.95.05\x00vermagic=" + release + " SMP\x00license=Dual MIT/GPL\x00parmtype=peerdirect_support:int\x00depends=" + strings.Join(depends, ",") + "\x00"
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

// calls stands in for a kernel that lists its modules in a file.
type calls struct {
	modules string // proc/modules
	refuse  error  // of unloading

	mu    sync.Mutex
	calls []string
}

func (c *calls) Uname(u *unix.Utsname) error { copy(u.Release[:], release); return nil }

func (c *calls) FinitModule(fd int, params string, _ int) error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	return c.InitModule(data, params)
}

func (c *calls) InitModule(data []byte, params string) error {
	i, err := kernel.ReadInfo(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	c.record(strings.TrimSpace("load " + i.Name + " " + params))
	f, err := os.OpenFile(c.modules, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s 16384 0 - Live 0x0\n", i.Name)
	return errors.Join(err, f.Close())
}

func (c *calls) DeleteModule(name string, _ int) error {
	if c.refuse != nil {
		return c.refuse
	}
	data, err := os.ReadFile(c.modules)
	if err != nil {
		return err
	}
	var rest strings.Builder
	found := false
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, name+" ") {
			found = true
			continue
		}
		rest.WriteString(line)
	}
	if !found {
		return unix.ENOENT
	}
	c.record("unload " + name)
	return os.WriteFile(c.modules, []byte(rest.String()), 0o644)
}

func (c *calls) record(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, what)
}

func (c *calls) recorded() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// newPeermem returns a Peermem on a node with an image, and the calls of its kernel, which
// has modules loaded.
func newPeermem(t *testing.T, loaded ...string) (*Peermem, *calls, string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, data, 0o644))
	}
	for name, depends := range map[string][]string{"nvidia": nil, "nvidia-uvm": {"nvidia"}, "nvidia-peermem": {"nvidia", "ib_core"}} {
		write("image/lib/modules/"+release+"/"+name+".ko", module(t, strings.ReplaceAll(name, "-", "_"), depends...))
	}
	write("lib/modules/"+release+"/modules.dep", []byte("kernel/ib_core.ko:\n"))
	write("lib/modules/"+release+"/kernel/ib_core.ko", module(t, "ib_core"))
	write("drivers/nvidia-peermem.conf", []byte("peerdirect_support=1\n"))
	var lines strings.Builder
	for _, name := range loaded {
		fmt.Fprintf(&lines, "%s 16384 0 - Live 0x0\n", name)
	}
	write("proc/modules", []byte(lines.String()))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sys"), 0o755))
	root, err := host.Open(dir)
	require.NoError(t, err)
	image, err := host.Open(filepath.Join(dir, "image"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(root.Close(), image.Close())) })
	c := &calls{modules: filepath.Join(dir, "proc/modules")}
	return &Peermem{
		Survey: Survey{
			System: kernel.System{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys"), Calls: c},
			Host:   root, Image: image, Modules: "/lib/modules", Conf: "/drivers", Kind: kernel.Auto,
		},
		DriverReady: filepath.Join(dir, "run/nvidia/validations/.driver-ctr-ready"), NetworkReady: filepath.Join(dir, "run/mellanox/drivers/.driver-ready"),
		Log: slog.New(slog.DiscardHandler),
	}, c, dir
}

func touch(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, nil, 0o644))
}

func TestPeermemIsLoadedAfterBothDrivers(t *testing.T) {
	p, c, _ := newPeermem(t, "nvidia", "ib_core", "mlx5_core")
	done := make(chan error, 1)
	go func() { done <- p.Reload(t.Context()) }()
	touch(t, p.DriverReady)
	time.Sleep(20 * time.Millisecond)
	require.Empty(t, c.recorded(), "the network's driver is not ready")
	touch(t, p.NetworkReady)
	require.NoError(t, <-done)
	require.Equal(t, []string{"load nvidia_peermem peerdirect_support=1"}, c.recorded())
	require.NoError(t, p.CheckLoaded())

	// It is reloaded.
	require.NoError(t, p.Reload(t.Context()))
	require.Equal(t, []string{"unload nvidia_peermem", "load nvidia_peermem peerdirect_support=1"}, c.recorded()[1:])
}

func TestPeermemWithTheHostsNetworkDriver(t *testing.T) {
	p, c, _ := newPeermem(t, "nvidia")
	p.HostNetwork = true
	touch(t, p.DriverReady)
	touch(t, p.NetworkReady) // left by an ended container
	done := make(chan error, 1)
	go func() { done <- p.Reload(t.Context()) }()
	time.Sleep(20 * time.Millisecond)
	require.Empty(t, c.recorded())
	require.NoError(t, p.CheckLoaded(), "it is not wanted yet")
	require.NoError(t, os.WriteFile(c.modules, []byte("nvidia 16384 0 - Live 0x0\nmlx5_core 16384 0 - Live 0x0\n"), 0o644))
	require.ErrorContains(t, p.CheckLoaded(), "nvidia_peermem is not")
	require.NoError(t, <-done)
	require.Equal(t, []string{"load ib_core", "load nvidia_peermem peerdirect_support=1"}, c.recorded())
}

func TestFailedLoadOfPeermemHasAReason(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(t *testing.T, p *Peermem, c *calls, dir string)
		reason string
		want   string
	}{
		"InUse": {func(_ *testing.T, _ *Peermem, c *calls, _ string) { c.refuse = unix.EWOULDBLOCK }, "InUse", "module nvidia_peermem is in use"},
		"NoPeermem": {func(t *testing.T, _ *Peermem, _ *calls, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "drivers/nvidia-peermem.conf")))
			require.NoError(t, os.Remove(filepath.Join(dir, "image/lib/modules", release, "nvidia-peermem.ko")))
		}, "DependencyMissing", "the driver's image has no module nvidia_peermem"},
		"NoNetwork": {func(t *testing.T, _ *Peermem, _ *calls, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "lib/modules", release, "modules.dep")))
		}, "DependencyMissing", "needs ib_core"},
		"NoModules": {func(t *testing.T, _ *Peermem, _ *calls, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "image/lib/modules")))
		}, "KernelMismatch", "no modules for kernel " + release},
		"Parameter": {func(t *testing.T, _ *Peermem, _ *calls, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "drivers/nvidia-peermem.conf"), []byte("peer_support=1"), 0o644))
		}, "ParameterUnknown", "peer_support"},
	} {
		t.Run(name, func(t *testing.T) {
			p, k, dir := newPeermem(t, "nvidia", "nvidia_peermem")
			touch(t, p.DriverReady)
			touch(t, p.NetworkReady)
			c.spoil(t, p, k, dir)
			err := p.Reload(t.Context())
			e, is := errors.AsType[*kernel.Error](err)
			require.True(t, is, "%v", err)
			require.EqualValues(t, c.reason, e.Reason)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, k.recorded(), "what is loaded stays")
		})
	}
}

// Modules that were built on the node are not in the image.
func TestPeermemBuiltOnTheNode(t *testing.T) {
	p, c, dir := newPeermem(t, "nvidia", "ib_core")
	touch(t, p.DriverReady)
	touch(t, p.NetworkReady)
	p.Work = filepath.Join(dir, "work")
	require.NoError(t, os.MkdirAll(filepath.Join(p.Work, "lib"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(dir, "image/lib/modules"), filepath.Join(p.Work, "lib/modules")))
	require.NoError(t, p.Reload(t.Context()))
	require.Equal(t, []string{"load nvidia_peermem peerdirect_support=1"}, c.recorded())
}

func TestWaitForTheNetworkEndsWithTheContainer(t *testing.T) {
	for _, hostNetwork := range []bool{false, true} {
		p, c, _ := newPeermem(t, "nvidia")
		p.HostNetwork = hostNetwork
		touch(t, p.DriverReady)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		require.ErrorIs(t, p.Reload(ctx), context.DeadlineExceeded)
		cancel()
		require.Empty(t, c.recorded())
	}
}
