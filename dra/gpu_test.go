package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/faultykernel"
)

// faultVar makes this test binary run a kernel that writes where it may not.
const faultVar = "GPUREADY_TEST_FAULT"

func TestMain(m *testing.M) {
	if os.Getenv(faultVar) == "" {
		os.Exit(m.Run())
	}
	if err := faultykernel.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestGPUClaims prepares claims of this machine's own GPU, and sees an XID that its driver reports. Without
// such a GPU it is skipped.
func TestGPUClaims(t *testing.T) {
	source, err := nvml.Open(nvml.Options{DriverRoot: "/", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Skipf("no GPU on this machine: %v", err)
	}
	snapshot, err := source.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, source.Close())
	if snapshot.Driver.Simulated || len(snapshot.Devices) == 0 {
		t.Skip("no GPU on this machine")
	}
	dir, err := os.MkdirTemp("", "dra") // the paths of sockets must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, folder := range []string{"plugins", "plugins_registry", "dp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("version: v1\nhealth:\n  xids:\n  - {xid: 31, action: unhealthy, recovery: quiet}\n"), 0o644))
	n := &node{t: t, dir: dir, api: newAPIServer(t)}
	n.kubelet = newKubelet(t, dir)
	state, cdi, account := "--state-dir="+dir+"/state", "--cdi-output-dir="+dir+"/cdi", "--pod-resources-socket="+dir+"/kubelet.sock"
	built.Start(t, "gpu-toolkit", []string{"run", "--hook-program=" + built.Path(t, "gpu-cdi-hook"), "--driver-root=/", "--toolkit-install-dir=" + dir + "/toolkit", state, cdi, "--listen="})
	built.Start(t, "gpu-device-plugin", []string{"--kubelet-socket=" + dir + "/dp/kubelet.sock", account, "--serve=dra", "--driver-root=/", "--config-file=" + config, state, "--listen="})
	began := time.Now()
	built.Start(t, "gpu-dra-driver", []string{"--node-name=node-1", "--pod-uid=1", "--kubeconfig=" + n.api.kubeconfig(t, dir), "--kubelet-dir=" + dir, account, state, cdi, "--check-device-nodes", "--listen="})
	client := n.register(t, "1")
	var device resourceapi.Device
	n.waitDevices("the GPU is published", func(devices map[string]resourceapi.Device) bool {
		for _, d := range devices {
			device = d
		}
		return len(devices) == len(snapshot.Devices) && len(device.Taints) == 0
	})
	t.Logf("published %v after the start", time.Since(began).Round(time.Millisecond))
	text, err := json.MarshalIndent(device, "", "  ")
	require.NoError(t, err)
	t.Logf("%s", text)
	require.False(t, *device.Attributes["simulated"].BoolValue)
	first := n.claim("first", device.Name)
	require.Eventually(t, func() bool { // the toolkit names the GPU
		_, refusal, err := prepare(t.Context(), client, first)
		return err == nil && refusal == ""
	}, time.Minute, 100*time.Millisecond)
	refusal, err := unprepare(t.Context(), client, first)
	require.NoError(t, err)
	require.Empty(t, refusal)
	var took []time.Duration
	for i := range 50 {
		c := n.claim(fmt.Sprintf("claim-%d", i), device.Name)
		began := time.Now()
		names, refusal, err := prepare(t.Context(), client, c)
		took = append(took, time.Since(began))
		require.NoError(t, err)
		require.Empty(t, refusal)
		require.Equal(t, []string{"k8s.gpuready.io/gpu=" + *device.Attributes["uuid"].StringValue}, names)
		refusal, err = unprepare(t.Context(), client, c)
		require.NoError(t, err)
		require.Empty(t, refusal)
	}
	slices.Sort(took)
	t.Logf("NodePrepareResources: median %v, slowest of %d %v", took[len(took)/2], len(took), took[len(took)-1])

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), faultVar+"=1")
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	at, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	require.NoError(t, err)
	n.waitDevices("the XID is published", func(devices map[string]resourceapi.Device) bool {
		device = devices[device.Name]
		return len(device.Taints) == 1 && device.Taints[0].Value == "XID"
	})
	t.Logf("launch of a faulty kernel → the taint in the API: %v", time.Since(time.Unix(0, at)).Round(time.Millisecond))
	_, refusal, err = prepare(t.Context(), client, n.claim("late", device.Name))
	require.NoError(t, err)
	require.Contains(t, refusal, "is unhealthy: XID: XID 31")
}
