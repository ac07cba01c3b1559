package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

// smallRun is a host whose /run is a file system that a test can fill.
type smallRun struct {
	*testing.T
	host string
	fill string
}

func newSmallRun(t *testing.T) *smallRun {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	host := t.TempDir()
	s := &smallRun{t, host, filepath.Join(host, "run/fill")}
	for _, dir := range []string{"run", "var", "dev", "proc", "usr/local"} {
		require.NoError(t, os.MkdirAll(filepath.Join(host, dir), 0o755))
	}
	require.NoError(t, unix.Mount("tmpfs", filepath.Join(host, "run"), "tmpfs", 0, "size=128k,nr_inodes=64"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(filepath.Join(host, "run"), unix.MNT_DETACH)) })
	require.NoError(t, os.Symlink("/run", filepath.Join(host, "var/run")))
	return s
}

// fillUp uses all space in /run, or all inodes.
func (s *smallRun) fillUp(what string) {
	s.Helper()
	require.NoError(s, os.MkdirAll(s.fill, 0o755))
	var err error
	for i := 0; err == nil; i++ {
		data := make([]byte, 4096)
		if what == "inodes" {
			data = nil
		}
		err = os.WriteFile(filepath.Join(s.fill, time.Duration(i).String()), data, 0o644)
	}
	require.ErrorIs(s, err, unix.ENOSPC)
}

func (s *smallRun) makeRoom() {
	s.Helper()
	require.NoError(s, os.RemoveAll(s.fill))
}

func (s *smallRun) state() string { return filepath.Join(s.host, "run/nvidia/gpuready/toolkit") }

func (s *smallRun) up() {
	s.Helper()
	built.Gpusim(s, "up", "--root", filepath.Join(s.host, "driver"), "--profile", "h100-sxm")
	s.Cleanup(func() { built.Gpusim(s, "down", "--root", filepath.Join(s.host, "driver")) })
}

func (s *smallRun) start() *built.Process {
	s.Helper()
	return built.Start(s, "gpu-toolkit", []string{"run", "--host-root", s.host, "--driver-root", "/driver", "--listen=", "--hook-program", built.Path(s, "gpu-cdi-hook")})
}

// becomes waits until the published state has a phase.
func (s *smallRun) becomes(p *built.Process, phase nodestate.Phase) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	boot, err := nodestate.BootIDAt(s.host)
	require.NoError(s, err)
	var last nodestate.State
	_ = nodestate.WatchBoot(ctx, s.state(), boot, func(now nodestate.State, err error) {
		if last = now; err == nil && now.Phase == phase {
			cancel()
		}
	})
	require.Equal(s, phase, last.Phase, p.Output())
}

func TestAToolkitStartsOnAFullDiskAndGoesOnWhenThereIsRoom(t *testing.T) {
	for _, what := range []string{"bytes", "inodes"} {
		t.Run(what, func(t *testing.T) {
			s := newSmallRun(t)
			s.up()
			s.fillUp(what)
			p := s.start()
			said := "the state cannot be written"
			if what == "inodes" {
				said = "waiting for room for the lock"
			}
			require.NoError(t, p.WaitOutput(patient(t), said))
			require.NoFileExists(t, filepath.Join(s.state(), nodestate.FileName))
			s.makeRoom()
			s.becomes(p, nodestate.Ready)
		})
	}
}

func TestAFullDiskLeavesNoStateThatIsNotTrue(t *testing.T) {
	built.SkipWithDriver(t)
	for _, what := range []string{"bytes", "inodes"} {
		t.Run(what, func(t *testing.T) {
			s := newSmallRun(t)
			p := s.start()
			s.becomes(p, nodestate.Waiting)
			s.fillUp(what)
			s.up()
			require.NoError(t, p.WaitOutput(patient(t), "toolkit Failed"))
			boot, err := nodestate.BootIDAt(s.host)
			require.NoError(t, err)
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				now, err := nodestate.ReadBoot(s.state(), boot)
				if err == nil {
					require.Equal(c, nodestate.Failed, now.Phase)
				}
			}, time.Minute, 10*time.Millisecond)
			s.makeRoom()
			s.becomes(p, nodestate.Ready)
		})
	}
}

func TestToolkitContinuesWithoutDescriptors(t *testing.T) {
	s := newSmallRun(t)
	s.up()
	p := s.start()
	s.becomes(p, nodestate.Ready)
	var was unix.Rlimit
	require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &was))
	require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil))
	specs := filepath.Join(s.host, "run/cdi")
	require.NoError(t, os.RemoveAll(specs))
	require.NoError(t, p.WaitOutput(patient(t), "the state cannot be written"))
	content, err := os.ReadFile(filepath.Join(s.state(), nodestate.FileName))
	require.NoError(t, err)
	require.Empty(t, content, "it is not as it says any more")
	require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &was, nil))
	// Before it has read the folder again, it may publish what it knew last.
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.DirExists(c, specs) }, 2*time.Minute, 10*time.Millisecond)
	s.becomes(p, nodestate.Ready)
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
