package setup

import (
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/spec"
)

var config = Config{CDIDir: "/var/run/cdi", InstallDir: "/usr/local/nvidia/gpuready", StateDir: "/run/nvidia/gpuready"}

func TestEveryFailureHasAReasonAndANextAction(t *testing.T) {
	at := func(path string, err error) error { return &fs.PathError{Op: "write", Path: path, Err: err} }
	for _, c := range []struct {
		err    error
		phase  nodestate.Phase
		reason gpu.Reason
		want   string
	}{
		{gpu.ErrNoDriver, nodestate.Waiting, ReasonNoDriver, "--driver-root"},
		{fmt.Errorf("%w: say so with --driver-root", gpu.ErrNoDriver), nodestate.Waiting, ReasonNoDriver, "--driver-root"},
		{gpu.ErrVersionMismatch, nodestate.Failed, ReasonVersionMismatch, "reboot"},
		{gpu.ErrNoPermission, nodestate.Failed, ReasonNoPermission, "/dev/nvidia*"},
		{spec.ErrNoCUDA, nodestate.Failed, ReasonNoCUDA, "libcuda"},
		{ErrHook, nodestate.Failed, ReasonHookMissing, "--hook-program"},
		{at("/var/run/cdi/x.yaml", syscall.EROFS), nodestate.Failed, ReasonReadOnly, "--cdi-output-dir"},
		{at("/usr/local/nvidia", syscall.EROFS), nodestate.Failed, ReasonReadOnly, "--toolkit-install-dir"},
		{at("/run/nvidia/gpuready/toolkit", syscall.EROFS), nodestate.Failed, ReasonReadOnly, "--state-dir"},
		{at("/elsewhere", syscall.EROFS), nodestate.Failed, ReasonReadOnly, "mount it writable"},
		{at("/var/run/cdi/x.yaml", syscall.ENOSPC), nodestate.Failed, ReasonDiskFull, "make room"},
		{fmt.Errorf("/var/run/cdi: %w", mount.ErrReplaced), nodestate.Failed, ReasonFolderReplaced, "nothing to do"},
		{at("/dev/nvidiactl", syscall.EPERM), nodestate.Failed, ReasonNoPermission, "root"},
		{at("/dev/nvidiactl", syscall.EIO), nodestate.Failed, ReasonHost, "/dev/nvidiactl"},
	} {
		s := config.State(Wanted{}, fmt.Errorf("doing: %w", c.err))
		require.Equal(t, c.phase, s.Phase, c.err)
		require.Equal(t, c.reason, s.Reason, c.err)
		require.Contains(t, s.Message, c.want)
		require.Contains(t, s.Message, c.err.Error())
	}
}

func TestStateSummarizesTheResult(t *testing.T) {
	specs := []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/x.yaml", Devices: []string{"GPU-1"}}}
	s := config.State(Wanted{Specs: specs, Driver: nodestate.DriverInfo{Version: "580.1"}}, nil)
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Equal(t, "/usr/local/nvidia/gpuready/gpu-cdi-hook", s.Toolkit.Hook)
	require.Equal(t, "580.1", s.Driver.Version)
	require.True(t, Same(s, config.State(Wanted{Specs: specs, Driver: nodestate.DriverInfo{Version: "580.1"}}, nil)))
	degraded := config.State(Wanted{Specs: specs, Warnings: []string{"one", "two"}}, nil)
	require.Equal(t, nodestate.Degraded, degraded.Phase)
	require.Equal(t, "one; two", degraded.Message)
	require.False(t, Same(s, degraded))
}

func TestStateNamesConflictingFiles(t *testing.T) {
	specs := []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/x.yaml", Devices: []string{"GPU-1"}}}
	s := config.State(Wanted{Specs: specs, Conflict: "/var/run/cdi/copy.yaml defines it", Warnings: []string{"one"}}, nil)
	require.Equal(t, nodestate.Degraded, s.Phase)
	require.Equal(t, ReasonConflict, s.Reason)
	require.Equal(t, "/var/run/cdi/copy.yaml defines it; one", s.Message)
	s = config.State(Wanted{Specs: specs, Owner: "/etc/cdi/nvidia.yaml", Others: []string{"/etc/cdi/gds.yaml defines nvidia.com/gds; ours is not written"}}, nil)
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Equal(t, "/etc/cdi/nvidia.yaml defines nvidia.com/gpu; ours is not written; /etc/cdi/gds.yaml defines nvidia.com/gds; ours is not written", s.Message)
}
