// Package gpu_test runs the built programs against this machine's own GPU. On a
// machine without one every case is skipped, by name. `make test-gpu` runs it.
package gpu_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/test/lab/built"
)

// machine returns this machine's GPUs and skips the test where there are none.
func machine(t *testing.T) gpu.Snapshot {
	t.Helper()
	src, err := nvml.Open(nvml.Options{DriverRoot: "/", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Skipf("no GPU on this machine: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, src.Close()) })
	snap, err := src.Snapshot(t.Context())
	require.NoError(t, err)
	if snap.Driver.Simulated || len(snap.Devices) == 0 {
		t.Skip("no GPU on this machine")
	}
	return snap
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(built.Path(t, name), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "%s %v\n%s%s", name, args, out, stderr.String())
	return string(out)
}

func TestGPUSnapshotIsWhole(t *testing.T) {
	snap := machine(t)
	require.NotEmpty(t, snap.Driver.Version)
	require.NotEmpty(t, snap.Driver.CUDAVersion)
	for _, d := range snap.Devices {
		require.Zero(t, d.Fault, d.UUID)
		require.True(t, strings.HasPrefix(string(d.UUID), "GPU-"), d.UUID)
		require.NotEmpty(t, d.Product)
		require.NotEmpty(t, d.PCI)
		require.NotZero(t, d.MemoryBytes)
		require.NotZero(t, d.Compute.Major)
		t.Logf("%+v", d)
	}
}

func TestGPUVectorAdd(t *testing.T) {
	machine(t)
	out := run(t, "vectoradd")
	require.Contains(t, out, "Test PASSED\nDone")
	t.Log(out)
}

func TestGPUDevicePluginSeesEveryGPU(t *testing.T) {
	snap := machine(t)
	out := run(t, "gpu-device-plugin", "devices", "-o", "json")
	for _, d := range snap.Devices {
		require.Contains(t, out, string(d.UUID))
	}
}

func TestGPUToolkitPlansEveryGPU(t *testing.T) {
	snap := machine(t)
	out := run(t, "gpu-toolkit", "plan")
	for _, d := range snap.Devices {
		require.Contains(t, out, string(d.UUID))
	}
	require.Contains(t, out, "libcuda.so")
}

func TestGPURecordedProfileComesUp(t *testing.T) {
	snap := machine(t)
	profile := filepath.Join(t.TempDir(), "recorded.yaml")
	run(t, "gpusim", "record", "--out", profile)
	recorded, err := os.ReadFile(profile)
	require.NoError(t, err)
	t.Logf("recorded:\n%s", recorded)
	root := built.DriverRoot(t, profile)
	require.Contains(t, built.Gpusim(t, "status", "--root", root), strings.TrimPrefix(snap.Devices[0].Product, "NVIDIA "))
}

func TestGPUDemo(t *testing.T) {
	machine(t)
	if os.Geteuid() != 0 {
		t.Skip("the demo needs root")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("the demo needs runc")
	}
	var result struct{ Passed, Simulated bool }
	out := run(t, "demo", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	require.True(t, result.Passed)
	require.False(t, result.Simulated)
	t.Log(out)
}
