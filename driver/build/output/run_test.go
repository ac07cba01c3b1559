package output

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/kernel"
)

func TestInterruptedProgramLeavesNoProcess(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "begun")); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	o := New(dir, slog.New(slog.DiscardHandler))
	// Children that keep the output open, and one that does not.
	script := "sleep 100000.5 & sleep 100000.25 >/dev/null 2>&1 </dev/null & touch " + dir + "/begun; sleep 100000.125"
	begun := time.Now()
	require.Error(t, o.Run(ctx, Environment(dir), "sh", "-c", script))
	require.Less(t, time.Since(begun), time.Minute)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range files {
		line, _ := os.ReadFile(f)
		require.NotContains(t, string(line), "sleep\x00100000.")
	}
}

func TestEnvironmentIsExplicit(t *testing.T) {
	t.Setenv("SECRET", "x")
	t.Setenv("MAKEFLAGS", "-k")
	dir := t.TempDir()
	o := New(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, o.Run(t.Context(), Environment(dir), "sh", "-c", "env > "+dir+"/env"))
	text, err := os.ReadFile(filepath.Join(dir, "env"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "SECRET")
	require.NotContains(t, string(text), "MAKEFLAGS")
	require.Contains(t, string(text), "LC_ALL=C\n")
}

func TestRefuseAddsTheHint(t *testing.T) {
	err := BuildError("build it", &os.PathError{Op: "write", Path: "/x", Err: unix.ENOSPC})
	e, ok := errors.AsType[*kernel.Error](err)
	require.True(t, ok)
	require.Equal(t, ReasonBuildFailed, e.Reason)
	require.EqualError(t, err, "build it: write /x: no space left on device; the disk under the work folder is full: NVIDIA's modules take 1 GiB there")
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Same(t, e, BuildError("again", e))
	require.LessOrEqual(t, len(BuildError("x", errors.New(strings.Repeat("long ", 1000))).Error()), maxMessage)
}
