package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

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

// TestDriverToolkitCompilesForNVIDIA does to the shared folder what NVIDIA's driver container does. It
// must get modules for a real kernel that modprobe finds.
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

	// NVIDIA's container offers the driver and its environment.
	at := func(name string) string { return filepath.Join(side.Dir, name) }
	name := "NVIDIA-Linux-" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-" + version + ".run"
	unpack := fmt.Sprintf("mkdir \"$3\" && cp -R '%s' \"$3/kernel-open\"\n", source)
	env := fmt.Sprintf("PATH=%q\nDRIVER_VERSION=%q\nKERNEL_MODULE_TYPE=%q\n", os.Getenv("PATH"), version, "auto")
	require.NoError(t, os.Mkdir(at("drivers"), 0o755))
	require.NoError(t, os.WriteFile(at("drivers/"+name), []byte(unpack), 0o644))
	require.NoError(t, os.WriteFile(at("env"), []byte(env), 0o644))
	require.NoError(t, os.WriteFile(at("dir_prepared"), nil, 0o644))

	// It waits for the modules, and installs them. The test's own time limit ends a wait for ever.
	for _, mark := range []string{"driver_build_started", "driver_built"} {
		for {
			if text, err := os.ReadFile(at("driver_toolkit_broken")); err == nil {
				require.FailNow(t, "the side-car cannot build", "%s", text)
			}
			if _, err := os.Stat(at(mark)); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	base := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(base, "lib/modules", k.Release), os.DirFS(at("modules"))))
	modules := []string{"nvidia", "nvidia-uvm", "nvidia-modeset"}
	show := append([]string{"-d", base, "-S", k.Release, "--show-depends", "-a"}, modules...)
	out, err := exec.CommandContext(ctx, "modprobe", show...).CombinedOutput()
	require.NoError(t, err, string(out))
	video := filepath.Join(base, "lib/modules", k.Release, "kernel/drivers/video")
	require.Equal(t, []string{"nvidia.ko", "nvidia.ko", "nvidia-uvm.ko", "nvidia.ko", "nvidia-modeset.ko"}, loadedBy(string(out)), "%s", out)
	require.NoError(t, kernel.CheckBuilt(video, modules, k.Release, version))
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
