package driver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// TestDriverToolkitCompiles compiles for a real kernel on the Driver Toolkit's side. The modules, or the
// compiler's error, must reach the other side.
func TestDriverToolkitCompiles(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux612)
	program, err := os.Executable()
	require.NoError(t, err)
	source, _ := edited(t, request(t, k).Source, "Kbuild", "DRIVER_VERSION ?= 0.0.0", "DRIVER_VERSION ?= "+version)
	m := toolkit.Client{
		Dir: t.TempDir(), Program: program, Source: source, Work: t.TempDir(),
		Request: toolkit.Request{Release: k.Release, Version: version, Kind: "open", Modules: []string{"nvidia", "nvidia-uvm"}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	side := toolkit.Builder{Dir: m.Dir, Root: k.Root(), Work: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	done := make(chan error, 1)
	go func() { done <- side.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()

	require.NoError(t, m.Prepare(ctx))
	dir, err := m.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, kernel.CheckBuilt(dir, m.Request.Modules, k.Release, version))
	require.Len(t, read(t, dir), 2)

	m.Source, _ = edited(t, source, "nvidia.c", ".open = ", ".opened = ")
	m.Request.Sources = ""
	require.NoError(t, m.Prepare(ctx))
	_, err = m.Wait(ctx)
	e, ok := errors.AsType[*kernel.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, build.ReasonBuildFailed, e.Reason)
	t.Log(err)
	require.True(t, strings.Contains(e.Message, "nvidia.c:51: ") && strings.Contains(e.Message, "take a newer one"), "%s", e)
	empty(t, side.Work)
}

// kernelOf implements the calls of a kernel that does not run here.
type kernelOf struct {
	kernel.Running
	release string
}

func (k kernelOf) Uname(u *unix.Utsname) error {
	copy(u.Release[:], k.release)
	return nil
}

// TestDriverToolkitCompilesForNVIDIA stands in for NVIDIA's driver container with a shell that handles
// the shared folder. It must get modules for a real kernel that modprobe finds.
func TestDriverToolkitCompilesForNVIDIA(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux612)
	source, _ := edited(t, request(t, k).Source, "Kbuild", "DRIVER_VERSION ?= 0.0.0", "DRIVER_VERSION ?= "+version)
	side := toolkit.Builder{
		Dir: t.TempDir(), Root: k.Root(), Work: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		System: kernel.System{Sys: t.TempDir(), Calls: kernelOf{release: k.Release}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- side.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()

	base := t.TempDir()
	main := exec.CommandContext(ctx, "sh", "-euc", `
		mkdir "$1/drivers"
		echo "mkdir \"\$3\"; cp -r '$2' \"\$3/kernel-open\"" > "$1/drivers/NVIDIA-Linux-$(uname -m)-$DRIVER_VERSION.run"
		env | sed 's/=/="/' | sed 's/$/"/' > "$1/env"
		touch "$1/dir_prepared"
		until [ -f "$1/driver_build_started" ]; do
			[ ! -f "$1/driver_toolkit_broken" ] || { cat "$1/driver_toolkit_broken"; exit 3; }
			sleep 0.1
		done
		until [ -f "$1/driver_built" ]; do sleep 0.1; done
		mkdir -p "$3/lib/modules/$4"
		cp -r "$1/modules"/* "$3/lib/modules/$4"
		modprobe -d "$3" -S "$4" --show-depends -a nvidia nvidia-uvm nvidia-modeset
	`, "sh", side.Dir, source, base, k.Release)
	main.Env = append(os.Environ(), "DRIVER_VERSION="+version, "KERNEL_MODULE_TYPE=auto")
	out, err := main.CombinedOutput()
	require.NoError(t, err, string(out))
	video := filepath.Join(base, "lib/modules", k.Release, "kernel/drivers/video")
	require.Equal(t, []string{"nvidia.ko", "nvidia.ko", "nvidia-uvm.ko", "nvidia.ko", "nvidia-modeset.ko"}, loadedBy(string(out)), "%s", out)
	require.NoError(t, kernel.CheckBuilt(video, []string{"nvidia", "nvidia-uvm", "nvidia-modeset"}, k.Release, version))
	require.Len(t, read(t, video), 3)
	empty(t, side.Work)
}

// loadedBy returns the files that modprobe would load.
func loadedBy(shown string) (files []string) {
	for line := range strings.Lines(shown) {
		if file, is := strings.CutPrefix(line, "insmod "); is && strings.Contains(file, "nvidia") {
			files = append(files, filepath.Base(strings.TrimSpace(file)))
		}
	}
	return files
}
