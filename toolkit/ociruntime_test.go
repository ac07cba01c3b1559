package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// The program is installed under the name runc, before the real one in PATH. Containers are
// created with it, and it finds the real runc as the low-level runtime.
func TestContainersOfTheHandlerGetTheirGPUs(t *testing.T) {
	program, err := os.ReadFile(built.Path(t, "gpu-oci-runtime"))
	require.NoError(t, err)
	hook := built.Path(t, "gpu-cdi-hook")
	if !node.Enter(t) {
		return
	}
	require.FileExists(t, hook)
	built.Gpusim(t, "up", "--root", node.DriverRoot, "--profile", "a100-80gb", "--gpus", "2")
	built.Gpusim(t, "mig", "--root", node.DriverRoot, "--gpu", "1", "--layout", "1g.10gb,2g.20gb")
	toolkit(t, "apply")
	var names []string
	for _, name := range uuids(t) { // CDI names
		names = append(names, strings.TrimPrefix(name, "k8s.gpuready.io/gpu="))
	}

	const dir = "/usr/local/handler"
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, built.WriteProgram(dir+"/runc", program, 0o755))
	settings := func(text string) { require.NoError(t, os.WriteFile(dir+"/gpu-oci-runtime.json", []byte(text), 0o644)) }
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	run := func(args []string, env ...string) (string, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, exit, err := node.RunContainer(ctx, node.Container{Args: args, Env: env, Files: map[string]string{"/bin/sh": "/bin/sh", "/usr/bin/vectoradd": built.Path(t, "vectoradd")}})
		require.NoError(t, err)
		return out, exit
	}
	list := []string{"/usr/bin/nvidia-smi", "-L"}

	settings(`{}`)
	out, exit := run(list, "NVIDIA_VISIBLE_DEVICES=0")
	require.Equal(t, 1, exit)
	require.Contains(t, out, "accept-nvidia-visible-devices-envvar-when-unprivileged")
	out, exit = run([]string{"/bin/sh", "-c", "echo /dev/nvidia*"}, "NVIDIA_VISIBLE_DEVICES=all")
	require.Zero(t, exit, out)
	require.Contains(t, out, "/dev/nvidia*", "an image says so of itself")

	settings(`{"accept-nvidia-visible-devices-envvar-when-unprivileged": true}`)
	for request, want := range map[string]struct{ there, missing string }{
		"0":      {names[0], names[1]},
		names[0]: {names[0], names[1]},
		"all":    {names[0], "nothing"},
	} {
		out, exit = run(list, "NVIDIA_VISIBLE_DEVICES="+request)
		require.Zero(t, exit, out)
		require.Contains(t, out, want.there, request)
		require.NotContains(t, out, want.missing, request)
	}
	for _, request := range []string{"0", "1:0"} {
		out, exit = run([]string{"/usr/bin/vectoradd"}, "NVIDIA_VISIBLE_DEVICES="+request)
		require.Zero(t, exit, out)
		require.Contains(t, out, "Test PASSED (SIMULATED)")
	}
	out, exit = run(list, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute")
	require.NotZero(t, exit, "nvidia-smi is the capability utility's")
	require.NotContains(t, out, names[0])
	out, exit = run(list, "NVIDIA_VISIBLE_DEVICES=5")
	require.Equal(t, 1, exit)
	require.Contains(t, out, `there is no GPU "5" on this node; there are 0, 1, 1:0, 1:1, GPU-`)
}
