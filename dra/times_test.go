package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// samples holds the times that TestTimes measures, for make bench.
type samples struct {
	Start   []time.Duration // of the process, until its slices are in the API
	Prepare []time.Duration // NodePrepareResources of a claim for 8 GPUs, with the lookup of the claim in the API
	Taint   []time.Duration // from the device plugin's state with an XID to the taint in the API
	Idle    []float64       // peak of the process after its start, in MB
	Peak    []float64       // the same after 50 claims for 8 GPUs, one after the other
}

// TestTimes measures only if GPUREADY_DRA_SAMPLES names an output file.
func TestTimes(t *testing.T) {
	file := os.Getenv("GPUREADY_DRA_SAMPLES")
	if file == "" {
		t.Skip("make bench measures")
	}
	n := newNode(t)
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	var names []string
	for _, i := range all {
		names = append(names, fmt.Sprintf("gpu-%d", i))
		if i >= 4 {
			n.state.DevicePlugin.Inventory = append(n.state.DevicePlugin.Inventory, nodestate.GPU{
				UUID: gpuID(i), Index: i, Minor: i, Product: "SIMULATED NVIDIA H100", MemoryBytes: 80 << 30, Condition: nodestate.Condition{Health: nodestate.Healthy}})
			require.NoError(t, syscall.Mknod(filepath.Join(n.dir, "host/dev", fmt.Sprintf("nvidia%d", i)), syscall.S_IFCHR|0o666, 1<<8|3))
		}
	}
	n.writeSpec(all...)
	n.writeState()
	var s samples
	for run := range 10 {
		n.clearSlices()
		began := time.Now()
		p := n.start("pod-1")
		n.waitDevices("at the start", func(devices map[string]resourceapi.Device) bool { return len(devices) == len(all) })
		s.Start = append(s.Start, time.Since(began))
		client := n.register(t, "pod-1")
		s.Idle = append(s.Idle, peakMemory(t, p.PID()))
		for i := range 50 {
			c := n.claim(fmt.Sprintf("c-%d-%d", run, i), names...)
			began = time.Now()
			cdi, refusal, err := prepare(t.Context(), client, c)
			s.Prepare = append(s.Prepare, time.Since(began))
			require.NoError(t, err)
			require.Empty(t, refusal)
			require.Len(t, cdi, len(all))
			_, err = unprepare(t.Context(), client, c)
			require.NoError(t, err)
		}
		healthy := n.state.DevicePlugin.Inventory[2].Condition
		for range 10 {
			n.state.DevicePlugin.Inventory[2].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79", Since: time.Now()}
			began = time.Now()
			n.writeState()
			n.waitDevices("after an XID", func(devices map[string]resourceapi.Device) bool { return len(devices["gpu-2"].Taints) == 1 })
			s.Taint = append(s.Taint, time.Since(began))
			n.state.DevicePlugin.Inventory[2].Condition = healthy
			n.writeState()
			n.waitDevices("after its end", func(devices map[string]resourceapi.Device) bool { return len(devices["gpu-2"].Taints) == 0 })
		}
		s.Peak = append(s.Peak, peakMemory(t, p.PID()))
		require.NoError(t, p.Signal(syscall.SIGTERM))
		_, err := p.Wait(t.Context())
		require.NoError(t, err)
	}
	data, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o644))
}

// clearSlices removes the slices of an earlier instance from the API.
func (n *node) clearSlices() {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	clear(n.api.slices)
}

// peakMemory returns the most memory that a process has had, in MB.
func peakMemory(t *testing.T, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, is := strings.CutPrefix(line, "VmHWM:"); is {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			require.NoError(t, err)
			return kib * 1024 / 1e6
		}
	}
	t.Fatal("/proc/PID/status has no VmHWM")
	return 0
}
