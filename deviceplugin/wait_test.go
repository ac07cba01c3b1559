package main

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestWaitReportsWhyItTimedOut(t *testing.T) {
	host := t.TempDir()
	gaveUp := func(args ...string) string {
		var stderr bytes.Buffer
		code := run(t.Context(), time.Now(), append([]string{"wait", "--host-root", host, "--timeout", "20ms"}, args...), nil, &stderr)
		require.Equal(t, exitFailed, code, stderr.String())
		return stderr.String()
	}
	require.Contains(t, gaveUp(), "gpu-device-plugin: containers still do not get the GPUs after 20ms: the toolkit has said nothing in this boot; see that nvidia-container-toolkit-daemonset runs")
	says := func(i nodestate.Injection) {
		s := nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Injection: &i}}
		require.NoError(t, nodestate.Write(filepath.Join(host, "states/toolkit"), s))
	}
	says(nodestate.Injection{Message: "containerd 1.7.2 has no NRI"})
	t.Setenv("GPUREADY_STATE_DIR", "/states")
	require.Contains(t, gaveUp(), "containerd 1.7.2 has no NRI; where the runtime has no NRI, use the -privileged manifest\n")
	says(nodestate.Injection{Working: true, Generation: "a"})
	var stderr bytes.Buffer
	require.Zero(t, run(t.Context(), time.Now(), []string{"wait", "--host-root", host}, nil, &stderr))
	require.Empty(t, stderr.String())
}

// Otherwise the pods on nodes without a GPU would restart again and again.
func TestWaitReturnsOnANodeWithoutGPUs(t *testing.T) {
	host := t.TempDir()
	require.NoError(t, nodestate.Write(filepath.Join(host, "run/nvidia/gpuready/toolkit"), nodestate.State{
		Component: nodestate.Toolkit, Phase: nodestate.Waiting, Reason: injection.ReasonNoGPU,
		Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Message: "containerd 1.7.2 has no NRI"}},
	}))
	var stderr bytes.Buffer
	require.Zero(t, run(t.Context(), time.Now(), []string{"wait", "--host-root", host, "--timeout", "5m"}, nil, &stderr))
	require.Empty(t, stderr.String())
}

func TestWaitCanBeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	require.Equal(t, exitFailed, run(ctx, time.Now(), []string{"wait", "--host-root", t.TempDir(), "--timeout", "0"}, nil, &stderr))
	require.Contains(t, stderr.String(), "gpu-device-plugin: interrupted while waiting: the toolkit")
}

func TestWaitUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"help":        {[]string{"--help"}, 0, "Exit codes:\n  0  a container that is created now gets the GPUs"},
		"unknown":     {[]string{"--frobnicate"}, exitUsage, "--frobnicate"},
		"argument":    {[]string{"for", "it"}, exitUsage, `unexpected argument "for"`},
		"in the past": {[]string{"--timeout", "-1s"}, exitUsage, "--timeout: -1s is negative"},
		"relative":    {[]string{"--state-dir", "x"}, exitUsage, "--state-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			require.Equal(t, c.code, run(t.Context(), time.Now(), append([]string{"wait"}, c.args...), nil, &stderr))
			require.Contains(t, stderr.String(), c.want)
		})
	}
	t.Setenv("WAIT_TIMEOUT", "soon")
	var stderr bytes.Buffer
	require.Equal(t, exitUsage, run(t.Context(), time.Now(), []string{"wait"}, nil, &stderr))
	require.Contains(t, stderr.String(), "WAIT_TIMEOUT")
}
