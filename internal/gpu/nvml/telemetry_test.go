package nvml

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/built"
)

// fakeTelemetry is the state that a fakeGPU measures.
type fakeTelemetry struct {
	utilization nvml.Utilization
	memory      nvml.Memory_v2
	temperature uint32
	power       uint32
	clocks      map[nvml.ClockType]uint32
	answer      nvml.Return // the result of temperature, power and clocks
}

func (g *fakeGPU) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	if g.device.MIGEnabled {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	return g.telemetry.utilization, g.begin("telemetry")
}

func (g *fakeGPU) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return g.telemetry.memory, g.begin("telemetry")
}

func (m *fakeMIG) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return nvml.Memory_v2{Total: m.device.MemoryBytes, Used: 1 << 20, Free: m.device.MemoryBytes - 1<<20}, m.gpu.begin("telemetry")
}

func (g *fakeGPU) GetTemperature(nvml.TemperatureSensors) (uint32, nvml.Return) {
	return g.telemetry.temperature, g.telemetry.answer
}
func (g *fakeGPU) GetPowerUsage() (uint32, nvml.Return) {
	return g.telemetry.power, g.telemetry.answer
}
func (g *fakeGPU) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return 700_000, g.telemetry.answer
}
func (g *fakeGPU) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return g.telemetry.clocks[kind], g.telemetry.answer
}

func TestTelemetryIsRead(t *testing.T) {
	node := gputest.Node("h100-sxm", 2)
	f, s := newFake(t, node, Options{})
	f.gpus[1].telemetry = fakeTelemetry{
		utilization: nvml.Utilization{Gpu: 97, Memory: 41}, memory: nvml.Memory_v2{Total: 80, Reserved: 5, Used: 30, Free: 45},
		temperature: 71, power: 612_345, clocks: map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1980, nvml.CLOCK_MEM: 2619},
	}
	f.gpus[1].condition.ecc = map[nvml.EccCounterType]uint64{nvml.VOLATILE_ECC: 1, nvml.AGGREGATE_ECC: 3}
	got := s.ReadTelemetry(t.Context(), node.Devices)
	require.Len(t, got, 2)
	require.Equal(t, gpu.Telemetry{GPU: gpu.Measurement{
		gpu.Utilization: 97, gpu.MemoryUtilization: 41, gpu.MemorySize: 80, gpu.MemoryReserved: 5, gpu.MemoryUsed: 30, gpu.MemoryFree: 45,
		gpu.Temperature: 71, gpu.Power: 612_345, gpu.PowerLimit: 700_000, gpu.SMClock: 1980, gpu.MemoryClock: 2619,
		gpu.ECCVolatileCorrected: 1, gpu.ECCVolatileUncorrected: 1, gpu.ECCAggregateCorrected: 3, gpu.ECCAggregateUncorrected: 3,
		gpu.RemappedRowsCorrected: 0, gpu.RemappedRowsUncorrected: 0,
	}}, got[1])
}

func TestTelemetryThatIsNotSupportedIsAbsent(t *testing.T) {
	node := gputest.Node("t4", 1)
	var failures []string
	f, s := newFake(t, node, Options{OnFailure: func(code string) { failures = append(failures, code) }})
	f.gpus[0].telemetry.answer, f.gpus[0].condition.answer = nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED
	s.has["nvmlDeviceGetRemappedRows"], s.has["nvmlDeviceGetMemoryInfo_v2"], s.has["nvmlDeviceGetUtilizationRates"] = false, false, false
	require.Equal(t, []gpu.Telemetry{{GPU: gpu.Measurement{gpu.MemorySize: node.Devices[0].MemoryBytes, gpu.MemoryUsed: 0, gpu.MemoryFree: 0}}},
		s.ReadTelemetry(t.Context(), node.Devices))
	require.Empty(t, failures)

	f.gpus[0].telemetry.answer = nvml.ERROR_UNKNOWN // a broken sensor
	got := s.ReadTelemetry(t.Context(), node.Devices)
	require.Contains(t, got[0].GPU, gpu.MemorySize, "the rest is read")
	require.NotContains(t, got[0].GPU, gpu.Power)
	require.Equal(t, []string{"UNKNOWN"}, failures)
}

func TestTelemetryOfMIGDevicesIsTheirMemory(t *testing.T) {
	node := gputest.Node("a100-mig", 1)
	_, s := newFake(t, node, Options{})
	got := s.ReadTelemetry(t.Context(), node.Devices)[0]
	require.NotContains(t, got.GPU, gpu.Utilization)
	require.Len(t, got.MIG, 4)
	for _, m := range node.Devices[0].MIG {
		require.Equal(t, gpu.Measurement{gpu.MemorySize: m.MemoryBytes, gpu.MemoryReserved: 0, gpu.MemoryUsed: 1 << 20, gpu.MemoryFree: m.MemoryBytes - 1<<20}, got.MIG[m.UUID])
	}
	other := node.Clone()
	other.Devices[0].MIG[0].UUID = "MIG-other"
	require.NotContains(t, s.ReadTelemetry(t.Context(), other.Devices)[0].MIG, gpu.UUID("MIG-other"), "another one has its index")
}

// A GPU that hangs, is lost, is released or has changed its place has no values; its
// neighbours do.
func TestTelemetryOfOtherGPUsIsReadBesideBrokenOnes(t *testing.T) {
	node := gputest.Node("h100-sxm", 5)
	f, s := newFake(t, node, Options{})
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	hang := make(chan struct{})
	defer close(hang)
	f.locked(func() { f.gpus[0].hang, f.gpus[1].handle = hang, nvml.ERROR_GPU_IS_LOST })
	s.mu.Lock()
	s.memory.out[node.Devices[2].UUID] = gpu.Fault{Reason: gpu.ReasonResetNeeded}
	s.mu.Unlock()
	asked := node.Clone().Devices
	asked[3].UUID = "GPU-other"
	for range 2 { // also while the first call still hangs
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		got := s.ReadTelemetry(ctx, asked)
		cancel()
		require.Equal(t, []gpu.Telemetry{{}, {}, {}, {}}, got[:4])
		require.NotEmpty(t, got[4].GPU)
	}
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, snap.Devices[4].Fault)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	require.Equal(t, make([]gpu.Telemetry, 5), s.ReadTelemetry(t.Context(), asked), "after Close")
}

func TestTelemetryOfASimulatedGPU(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "h100-sxm", "--gpus", "2")
	built.Gpusim(t, "load", "--root", root, "--gpu", "1", "--percent", "90", "--memory-used", "40960", "--temperature", "82", "--power", "650")
	built.Gpusim(t, "ecc", "--root", root, "--gpu", "1", "--uncorrected", "1")
	built.Gpusim(t, "mig", "--root", root, "--gpu", "0", "--layout", "3g.40gb,1g.10gb")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	got := s.ReadTelemetry(t.Context(), snap.Devices)
	busy := got[1].GPU
	require.EqualValues(t, 90, busy[gpu.Utilization])
	require.EqualValues(t, 40<<30, busy[gpu.MemoryUsed])
	require.Equal(t, busy[gpu.MemorySize], busy[gpu.MemoryUsed]+busy[gpu.MemoryFree]+busy[gpu.MemoryReserved])
	require.Greater(t, busy[gpu.Power], uint64(550_000))
	require.Greater(t, busy[gpu.Temperature], uint64(70))
	require.Greater(t, busy[gpu.SMClock], got[0].GPU[gpu.SMClock])
	require.EqualValues(t, 1, busy[gpu.ECCVolatileUncorrected])
	require.NotContains(t, got[0].GPU, gpu.Utilization, "in MIG mode")
	require.Len(t, got[0].MIG, 2)
	for _, m := range snap.Devices[0].MIG {
		require.True(t, strings.HasPrefix(string(m.UUID), "MIG-"))
		require.Equal(t, m.MemoryBytes, got[0].MIG[m.UUID][gpu.MemorySize])
	}
}
