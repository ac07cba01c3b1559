package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

func TestWaitReportsWhyItTimedOut(t *testing.T) {
	host := t.TempDir()
	gaveUp := func(args ...string) string {
		var stderr bytes.Buffer
		code := runProgram(t.Context(), time.Now(), append([]string{"wait", "--host-root", host, "--timeout", "20ms"}, args...), io.Discard, &stderr)
		require.Equal(t, program.Failed, code, stderr.String())
		return stderr.String()
	}
	require.Contains(t, gaveUp(), "gpu-device-plugin: containers still do not get the GPUs after 20ms: the toolkit has reported nothing since the node booted; see that nvidia-container-toolkit-daemonset runs")
	says := func(i nodestate.Injection) {
		s := nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Injection: &i}}
		require.NoError(t, nodestate.Write(filepath.Join(host, "states/toolkit"), s))
	}
	says(nodestate.Injection{Message: "containerd 1.7.2 has no NRI"})
	t.Setenv("GPUREADY_STATE_DIR", "/states")
	require.Contains(t, gaveUp(), "containerd 1.7.2 has no NRI; where the runtime has no NRI, use the -privileged manifest\n")
	says(nodestate.Injection{Working: true, Generation: "a"})
	var stderr bytes.Buffer
	require.Zero(t, runProgram(t.Context(), time.Now(), []string{"wait", "--host-root", host}, io.Discard, &stderr))
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
	require.Zero(t, runProgram(t.Context(), time.Now(), []string{"wait", "--host-root", host, "--timeout", "5m"}, io.Discard, &stderr))
	require.Empty(t, stderr.String())
}

func TestWaitCanBeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	require.Equal(t, program.Failed, runProgram(ctx, time.Now(), []string{"wait", "--host-root", t.TempDir(), "--timeout", "0"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "gpu-device-plugin: interrupted while waiting: the toolkit")
}

func TestWaitUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"help":        {[]string{"--help"}, 0, "Exit codes:\n  0  a container that is created now gets the GPUs"},
		"unknown":     {[]string{"--frobnicate"}, program.Usage, "--frobnicate"},
		"argument":    {[]string{"for", "it"}, program.Usage, `unexpected argument "for"`},
		"in the past": {[]string{"--timeout", "-1s"}, program.Usage, "--timeout: -1s is negative"},
		"relative":    {[]string{"--state-dir", "x"}, program.Usage, "--state-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, stderr := execute(t.Context(), append([]string{"wait"}, c.args...)...)
			require.Equal(t, c.code, code)
			require.Contains(t, out+stderr, c.want)
		})
	}
	t.Setenv("WAIT_TIMEOUT", "soon")
	var stderr bytes.Buffer
	require.Equal(t, program.Usage, runProgram(t.Context(), time.Now(), []string{"wait"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "WAIT_TIMEOUT")
}
