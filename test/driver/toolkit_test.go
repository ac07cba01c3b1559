package driver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/test/machine"
)

// The Driver Toolkit's side compiles for a real kernel: the modules are handed over, and a
// compiler's error is told on the other side.
func TestDriverToolkitCompiles(t *testing.T) {
	machine.SkipUnlessEnabled(t)
	k := machine.FetchKernel(t, machine.Linux612)
	program, err := os.Executable()
	require.NoError(t, err)
	source, _ := edited(t, request(t, k).Source, "Kbuild", "DRIVER_VERSION ?= 0.0.0", "DRIVER_VERSION ?= "+version)
	m := toolkit.Main{
		Dir: t.TempDir(), Program: program, Source: source, Work: t.TempDir(),
		Request: toolkit.Request{Release: k.Release, Version: version, Kind: "open", Modules: []string{"nvidia", "nvidia-uvm"}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	side := toolkit.SideCar{Dir: m.Dir, Root: k.Root(), Work: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
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
