package toolkit

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
)

// delivered returns the driver container's side with delivered modules, which a hostile
// side-car then changes.
func delivered(t *testing.T) *Client {
	t.Helper()
	m := newMain(t)
	stop := sideCar(t, &Builder{Dir: m.Dir, Build: builds(t, new(atomic.Int32))})
	require.NoError(t, m.Prepare(t.Context()))
	dir, err := m.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	stop()
	return m
}

// claim lists the module in a file in driver_built.
func claim(t *testing.T, m *Client, file, path string) {
	t.Helper()
	a, _, err := readResponse(m.Dir, builtName, m.id)
	require.NoError(t, err)
	a.Modules[file], err = folder.SumFile(path)
	require.NoError(t, err)
	require.NoError(t, writeResponse(m.Dir, builtName, a))
}

// replace replaces the file at a path.
func replace(t *testing.T, path string, by func(string) error) {
	t.Helper()
	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, by(path))
}

func link(to string) func(string) error {
	return func(path string) error { return os.Symlink(to, path) }
}

func file(data []byte) func(string) error {
	return func(path string) error { return os.WriteFile(path, data, 0o644) }
}

func folderAt(path string) error { return os.Mkdir(path, 0o755) }

func fifo(path string) error { return syscall.Mkfifo(path, 0o644) }

func TestHostileSideCarIsRefused(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "nvidia.ko")
	require.NoError(t, os.WriteFile(secret, module(t, "nvidia", version, release), 0o600))
	for name, c := range map[string]struct {
		spoil func(t *testing.T, m *Client, ko string)
		want  string
	}{
		"LinkOut": {func(t *testing.T, m *Client, ko string) {
			replace(t, ko, link(secret))
			claim(t, m, "nvidia.ko", secret)
		}, "no such file"},
		"LinkUp": {func(t *testing.T, m *Client, ko string) {
			replace(t, ko, link("../../../../../../../.."+secret))
			claim(t, m, "nvidia.ko", secret)
		}, "no such file"},
		"LinkOfFolder": {func(t *testing.T, m *Client, _ string) {
			replace(t, filepath.Join(m.Dir, modulesName), link(outside))
			claim(t, m, "nvidia.ko", secret)
		}, "no such file"},
		"LinkOfAnswer": {func(t *testing.T, m *Client, _ string) { replace(t, filepath.Join(m.Dir, builtName), link(secret)) }, "breaks the protocol"},
		"FIFO":         {func(t *testing.T, _ *Client, ko string) { replace(t, ko, fifo) }, "not a regular file"},
		"FIFOAnswer":   {func(t *testing.T, m *Client, _ string) { replace(t, filepath.Join(m.Dir, builtName), fifo) }, "breaks the protocol"},
		"HugeAnswer": {func(t *testing.T, m *Client, _ string) {
			require.NoError(t, os.Truncate(filepath.Join(m.Dir, builtName), 1<<40))
		}, "breaks the protocol"},
		"HugeModule": {func(t *testing.T, m *Client, ko string) {
			m.limit = 1 << 20
			require.NoError(t, os.Truncate(ko, 1<<40))
		}, "more than 1048576 bytes"},
		"Changed": {func(t *testing.T, _ *Client, ko string) { replace(t, ko, file([]byte("other"))) }, "has changed since"},
		"Folder":  {func(t *testing.T, _ *Client, ko string) { replace(t, ko, folderAt) }, "not a regular file"},
		"NoModule": {func(t *testing.T, m *Client, ko string) {
			replace(t, ko, file([]byte("#!/bin/sh\n")))
			claim(t, m, "nvidia.ko", ko)
		}, "not a kernel module"},
		"OtherKernel": {func(t *testing.T, m *Client, ko string) {
			replace(t, ko, file(module(t, "nvidia", version, "6.1")))
			claim(t, m, "nvidia.ko", ko)
		}, "nvidia.ko is built for kernel 6.1, not for " + release},
		"OtherVersion": {func(t *testing.T, m *Client, ko string) {
			replace(t, ko, file(module(t, "nvidia", "1", release)))
			claim(t, m, "nvidia.ko", ko)
		}, `nvidia.ko has version "1", not ` + version},
		"OtherModule": {func(t *testing.T, m *Client, ko string) {
			replace(t, ko, file(module(t, "rootkit", version, release)))
			claim(t, m, "nvidia.ko", ko)
		}, "nvidia.ko is the module rootkit"},
		"Missing": {func(t *testing.T, _ *Client, ko string) { require.NoError(t, os.Remove(ko)) }, "no such file"},
		"TooMany": {func(t *testing.T, m *Client, ko string) { claim(t, m, "../../x.ko", ko) }, "it reports 3 built modules instead of 2"},
		"OtherReason": {func(t *testing.T, m *Client, _ string) {
			require.NoError(t, writeResponse(m.Dir, failedName, response{ID: m.id, Reason: "DriverStopped", Message: "x"}))
		}, `has the unknown reason "DriverStopped"`},
	} {
		t.Run(name, func(t *testing.T) {
			m := delivered(t)
			c.spoil(t, m, filepath.Join(m.Dir, modulesName, "nvidia.ko"))
			_, err := m.Wait(t.Context())
			refused(t, err, ReasonToolkitBroken, c.want)
			require.LessOrEqual(t, len(err.Error()), maxMessage)
			empty(t, m.Work)
		})
	}
}

func TestNothingOutsideIsWrittenOrRemoved(t *testing.T) {
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("precious"), 0o644))
	m := newMain(t)
	for _, name := range []string{preparedName, envName, startedName, builtName, failedName, brokenName, programName, programName + ".tmp"} {
		require.NoError(t, os.Symlink(precious, filepath.Join(m.Dir, name)))
	}
	for _, name := range []string{sourcesName, modulesName} {
		require.NoError(t, os.Symlink(outside, filepath.Join(m.Dir, name)))
	}
	require.NoError(t, m.Prepare(t.Context()))
	text, err := os.ReadFile(precious)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.FileExists(t, filepath.Join(m.Dir, sourcesName, "nvidia/nv.c"))

	sideCar(t, &Builder{Dir: m.Dir, Build: builds(t, new(atomic.Int32))})
	_, err = m.Wait(t.Context())
	require.NoError(t, err)
	entries, err = os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// Whatever a side-car does to a module while it is copied, the copy is the verified module, or
// there is none.
func TestModuleThatChangesMeanwhileIsWholeOrRefused(t *testing.T) {
	m := delivered(t)
	good := module(t, "nvidia", version, release)
	changeMeanwhile(t, m, filepath.Join(m.Dir, modulesName, "nvidia.ko"), func(dir string) {
		data, err := os.ReadFile(filepath.Join(dir, "nvidia.ko"))
		require.NoError(t, err)
		require.Equal(t, good, data)
	})
}

// From a side-car without digests, the copy is a module of this kernel and driver.
func TestModuleThatChangesMeanwhileIsOneOfThisKernelOrRefused(t *testing.T) {
	m, ko := leftEmpty(t)
	changeMeanwhile(t, m, ko, func(dir string) {
		require.NoError(t, kernel.CheckBuilt(dir, m.Request.Modules, release, version))
	})
}

// changeMeanwhile replaces a module repeatedly while the driver container copies it, and checks
// the copies.
func changeMeanwhile(t *testing.T, m *Client, ko string, check func(dir string)) {
	t.Helper()
	good := module(t, "nvidia", version, release)
	bad := module(t, "nvidia", version, "6.1")
	uvm, other := filepath.Join(filepath.Dir(ko), "nvidia-uvm.ko"), module(t, "nvidia-uvm", version, release)
	stop := make(chan struct{})
	var hostile sync.WaitGroup
	hostile.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			switch n % 4 {
			case 0:
				if _, err := os.Lstat(uvm); err != nil { // rejected modules are removed
					_ = errors.Join(os.MkdirAll(filepath.Dir(ko), 0o755), os.WriteFile(uvm, other, 0o644))
				}
				_ = os.WriteFile(ko, bad, 0o644)
			case 1:
				_ = os.WriteFile(ko, good, 0o644)
			case 2:
				_ = errors.Join(os.Remove(ko), syscall.Mkfifo(ko, 0o644))
			case 3:
				_ = errors.Join(os.Remove(ko), os.Symlink("nvidia-uvm.ko", ko))
				_ = os.Remove(ko)
			}
		}
	})
	built, err := os.ReadFile(filepath.Join(m.Dir, builtName))
	require.NoError(t, err)
	for range 150 {
		require.NoError(t, os.WriteFile(filepath.Join(m.Dir, builtName), built, 0o644))
		dir, err := m.Wait(t.Context())
		if err != nil {
			refused(t, err, ReasonToolkitBroken, "")
			continue
		}
		check(dir)
		require.NoError(t, os.RemoveAll(dir))
	}
	close(stop)
	hostile.Wait()
	empty(t, m.Work)
}

// leftEmpty returns the driver container's side with modules of a side-car without digests,
// such as NVIDIA's, and the path of one of them.
func leftEmpty(t *testing.T) (m *Client, ko string) {
	t.Helper()
	m = newMain(t)
	require.NoError(t, m.Prepare(t.Context()))
	dir := filepath.Join(m.Dir, modulesName, "kernel/drivers/video")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range append([]string{"rootkit"}, m.Request.Modules...) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".ko"), module(t, name, version, release), 0o644))
	}
	for _, name := range []string{startedName, builtName} {
		require.NoError(t, os.WriteFile(filepath.Join(m.Dir, name), nil, 0o644))
	}
	return m, filepath.Join(dir, "nvidia.ko")
}

func TestHostileSideCarThatSaysNothingIsRefused(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "nvidia.ko")
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "kernel/drivers/video"), 0o755))
	for _, at := range []string{secret, filepath.Join(outside, "kernel/drivers/video/nvidia.ko")} {
		require.NoError(t, os.WriteFile(at, module(t, "nvidia", version, release), 0o600))
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, m *Client, ko string)
		want  string
	}{
		"LinkOfModules": {func(t *testing.T, m *Client, _ string) {
			replace(t, filepath.Join(m.Dir, modulesName), link(outside))
		}, "no such file"},
		"LinkOfFolder": {func(t *testing.T, _ *Client, ko string) { replace(t, filepath.Dir(ko), link(outside)) }, "no such file"},
		"LinkOut":      {func(t *testing.T, _ *Client, ko string) { replace(t, ko, link(secret)) }, "no such file"},
		"LinkUp": {func(t *testing.T, _ *Client, ko string) {
			replace(t, ko, link("../../../../../../../../../.."+secret))
		}, "no such file"},
		"LinkOfAnswer": {func(t *testing.T, m *Client, _ string) { replace(t, filepath.Join(m.Dir, builtName), link("env")) }, "breaks the protocol"},
		"LinkOfStart": {func(t *testing.T, m *Client, _ string) {
			require.NoError(t, os.Remove(filepath.Join(m.Dir, builtName)))
			replace(t, filepath.Join(m.Dir, startedName), link("env"))
		}, "breaks the protocol"},
		"FIFO":       {func(t *testing.T, _ *Client, ko string) { replace(t, ko, fifo) }, "not a regular file"},
		"FIFOFolder": {func(t *testing.T, m *Client, _ string) { replace(t, filepath.Join(m.Dir, modulesName), fifo) }, ""},
		"FIFOInFront": {func(t *testing.T, m *Client, _ string) {
			require.NoError(t, fifo(filepath.Join(m.Dir, modulesName, "nvidia.ko")))
		}, "not a regular file"},
		"FIFOAnswer": {func(t *testing.T, m *Client, _ string) { replace(t, filepath.Join(m.Dir, builtName), fifo) }, "breaks the protocol"},
		"HugeModule": {func(t *testing.T, m *Client, ko string) {
			m.limit = 1 << 20
			require.NoError(t, os.Truncate(ko, 1<<40))
		}, "more than 1048576 bytes"},
		"Empty":    {func(t *testing.T, _ *Client, ko string) { replace(t, ko, file(nil)) }, "not a kernel module"},
		"Folder":   {func(t *testing.T, _ *Client, ko string) { replace(t, ko, folderAt) }, "not a regular file"},
		"NoModule": {func(t *testing.T, _ *Client, ko string) { replace(t, ko, file([]byte("#!/bin/sh\n"))) }, "not a kernel module"},
		"OtherKernel": {func(t *testing.T, _ *Client, ko string) {
			replace(t, ko, file(module(t, "nvidia", version, "6.1")))
		}, "nvidia.ko is built for kernel 6.1, not for " + release},
		"OtherVersion": {func(t *testing.T, _ *Client, ko string) {
			replace(t, ko, file(module(t, "nvidia", "1", release)))
		}, `nvidia.ko has version "1", not ` + version},
		"OtherKind": {func(t *testing.T, _ *Client, ko string) {
			replace(t, ko, file(module(t, "nvidia", version, release, "license=NVIDIA")))
		}, "nvidia.ko is of the proprietary kind, not the open one"},
		"OtherModule": {func(t *testing.T, _ *Client, ko string) {
			replace(t, ko, file(module(t, "rootkit", version, release)))
		}, "nvidia.ko is the module rootkit"},
		"Missing": {func(t *testing.T, _ *Client, ko string) { require.NoError(t, os.Remove(ko)) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			m, ko := leftEmpty(t)
			c.spoil(t, m, ko)
			_, err := m.Wait(t.Context())
			refused(t, err, ReasonToolkitBroken, c.want)
			require.LessOrEqual(t, len(err.Error()), 2*maxMessage)
			empty(t, m.Work)
			require.FileExists(t, secret)
		})
	}
}

func TestOnlyVerifiedCopiesAreUsed(t *testing.T) {
	m, ko := leftEmpty(t)
	dir, err := m.Wait(t.Context())
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	good, err := os.ReadFile(filepath.Join(dir, "nvidia.ko"))
	require.NoError(t, err)
	// Swapped after it was verified.
	require.NoError(t, os.WriteFile(ko, module(t, "nvidia", version, "6.1"), 0o644))
	again, err := os.ReadFile(filepath.Join(dir, "nvidia.ko"))
	require.NoError(t, err)
	require.Equal(t, good, again)
}
