package nvml

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/built"
)

func TestUsersOfAGPUAreRead(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "h100-sxm", "--gpus", "3")
	sim := func(command string, args ...string) {
		t.Helper()
		built.Gpusim(t, append([]string{command, "--root", root}, args...)...)
	}
	sim("process", "--gpu", "0", "--pid", "31", "--memory", "1024")
	sim("process", "--gpu", "0", "--pid", "30", "--memory", "0", "--graphics")
	sim("mode", "--gpu", "0", "--mode", "exclusive-process")
	sim("mig", "--gpu", "1", "--layout", "1g.10gb,2g.20gb")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	busy := snap.Devices[1].MIG[1]
	sim("process", "--gpu", "1", "--pid", "40", "--gi", strconv.Itoa(busy.GPUInstance), "--ci", strconv.Itoa(busy.ComputeInstance))
	sim("load", "--gpu", "2", "--memory-used", "all")
	usage := s.ReadUsage(t.Context(), snap.Devices)
	require.Len(t, usage, 5)
	first := usage[snap.Devices[0].UUID]
	require.Equal(t, gpu.ComputeExclusive, first.Mode)
	require.Equal(t, []gpu.Process{{PID: 30, Graphics: true}, {PID: 31, Memory: 1 << 30}}, first.Processes)
	require.Positive(t, first.MemoryFree)
	require.Empty(t, usage[snap.Devices[1].MIG[0].UUID].Processes)
	require.Len(t, usage[busy.UUID].Processes, 1)
	require.Empty(t, usage[snap.Devices[2].UUID].Processes)
	require.Less(t, usage[snap.Devices[2].UUID].MemoryFree, uint64(1<<20))

	lost := snap.Devices[2]
	lost.Fault = gpu.Fault{Reason: gpu.ReasonLost}
	other := snap.Devices[0]
	other.UUID = "GPU-other" // its index has another GPU by now
	require.Empty(t, s.ReadUsage(t.Context(), []gpu.Device{lost, other}))
	require.NoError(t, s.Close())
	require.Empty(t, s.ReadUsage(t.Context(), snap.Devices))
}

// A library that lacks the functions, or a GPU that refuses them, shows nobody.
func TestUsersThatAreNotReportedAreAbsent(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "t4", "--gpus", "1")
	built.Gpusim(t, "process", "--root", root, "--gpu", "0", "--pid", "31")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	for _, symbol := range []string{"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses", graphicsProcesses, "nvmlDeviceGetComputeMode"} {
		s.has[symbol] = false
	}
	require.Empty(t, s.ReadUsage(t.Context(), snap.Devices)[snap.Devices[0].UUID].Processes)
	built.Gpusim(t, "lose", "--root", root, "--gpu", "0")
	require.Empty(t, s.ReadUsage(t.Context(), snap.Devices))
}
