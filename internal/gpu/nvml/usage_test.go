package nvml

import (
	"math"
	"strconv"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
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

	require.NotEmpty(t, usage[snap.Devices[1].UUID].Processes, "the GPU lists those of its MIG devices")

	lost := snap.Devices[2]
	lost.Fault = gpu.Fault{Reason: gpu.ReasonLost}
	other := snap.Devices[0]
	other.UUID = "GPU-other" // its index has another GPU by now
	require.Empty(t, s.ReadUsage(t.Context(), []gpu.Device{lost, other}))
	require.NoError(t, s.Close())
	require.Empty(t, s.ReadUsage(t.Context(), snap.Devices))
}

// usedGPU is a fakeGPU with processes.
type usedGPU struct {
	*fakeGPU
	compute, mps, graphics []nvml.ProcessInfo
	answer                 nvml.Return
}

func (g *usedGPU) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return g.compute, g.answer
}
func (g *usedGPU) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return g.mps, g.answer
}
func (g *usedGPU) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return g.graphics, g.answer
}

func TestProcessesAreListedOnce(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	g := &usedGPU{fakeGPU: f.gpus[0],
		compute:  []nvml.ProcessInfo{{Pid: 9, UsedGpuMemory: math.MaxUint64}, {Pid: 4, UsedGpuMemory: 5}},
		mps:      []nvml.ProcessInfo{{Pid: 7}},
		graphics: []nvml.ProcessInfo{{Pid: 4}, {Pid: 2}},
	}
	require.Equal(t, []gpu.Process{{PID: 2, Graphics: true}, {PID: 4, Memory: 5}, {PID: 7}, {PID: 9}}, readDeviceUsage(g, s.listProcesses(g)).Processes)
	// A library may have the newest version only, or none.
	for _, l := range processLists {
		s.has[l.versions[0]], s.has[l.versions[1]] = false, false
	}
	require.Len(t, s.listProcesses(g), 4)
	for _, l := range processLists {
		s.has[l.versions[2]] = false
	}
	require.Empty(t, s.listProcesses(g))
	_, s = newFake(t, gputest.Node("t4", 1), Options{})
	for _, g.answer = range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN, nvml.ERROR_GPU_IS_LOST} {
		require.Empty(t, s.listProcesses(g), "%v", g.answer)
	}
}
