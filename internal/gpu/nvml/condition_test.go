package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/built"
)

// fakeCondition is the state that a fakeGPU reports.
type fakeCondition struct {
	ecc      map[nvml.EccCounterType]uint64
	throttle uint64
	pcie     [4]int      // generation, the highest, width, the highest
	answer   nvml.Return // the result of all of these calls
}

func (f *fake) DeviceGetHandleByUUID(id string) (nvml.Device, nvml.Return) {
	f.locked(func() { f.searched = append(f.searched, id) })
	for _, g := range f.gpus {
		if string(g.device.UUID) == id {
			return g, nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func (g *fakeGPU) GetTotalEccErrors(_ nvml.MemoryErrorType, since nvml.EccCounterType) (uint64, nvml.Return) {
	return g.condition.ecc[since], g.condition.answer
}

func (g *fakeGPU) GetCurrentClocksThrottleReasons() (uint64, nvml.Return) {
	return g.condition.throttle, g.condition.answer
}

func (g *fakeGPU) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return g.condition.pcie[0], g.condition.answer
}

func (g *fakeGPU) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return g.condition.pcie[1], g.condition.answer
}

func (g *fakeGPU) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return g.condition.pcie[2], g.condition.answer
}

func (g *fakeGPU) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return g.condition.pcie[3], g.condition.answer
}

func TestConditionIsRead(t *testing.T) {
	f, s := newFake(t, gputest.Node("a100-80gb", 2), Options{})
	g := f.gpus[1]
	g.remapPending = true
	g.links = []fakeLink{{}, {down: true}, {}}
	g.condition = fakeCondition{
		ecc:      map[nvml.EccCounterType]uint64{nvml.VOLATILE_ECC: 1, nvml.AGGREGATE_ECC: 3},
		throttle: nvml.ClocksEventReasonSwPowerCap | nvml.ClocksThrottleReasonHwThermalSlowdown | 1<<40,
		pcie:     [4]int{1, 4, 8, 16},
	}
	got, err := s.Condition(t.Context(), g.device.UUID)
	require.NoError(t, err)
	require.Equal(t, gpu.Condition{
		ECC:      gpu.ECC{On: true, Volatile: 1, Aggregate: 3},
		Rows:     gpu.Rows{Supported: true, Pending: true},
		Throttle: []gpu.Throttle{gpu.ThrottlePowerCap, gpu.ThrottleHeat},
		PCIe:     gpu.PCIe{Generation: 1, MaxGeneration: 4, Width: 8, MaxWidth: 16},
		NVLinks:  gpu.NVLinks{Up: []int{0, 2}, Down: []int{1}},
	}, got)
	require.False(t, got.Throttle[0].Bad())
	require.True(t, got.Throttle[1].Bad())
}

func TestUnsupportedConditionFieldsAreLeftOut(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	id := f.gpus[0].device.UUID
	s.has["nvmlDeviceGetRemappedRows"], s.has["nvmlDeviceGetNvLinkState"] = false, false
	for _, answer := range []nvml.Return{
		nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_TIMEOUT, nvml.ERROR_UNKNOWN,
	} {
		f.gpus[0].condition.answer = answer
		got, err := s.Condition(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, gpu.Condition{}, got)
	}

	f.gpus[0].condition.answer = nvml.ERROR_GPU_IS_LOST
	_, err := s.Condition(t.Context(), id)
	require.ErrorContains(t, err, "nvmlDeviceGetTotalEccErrors: the GPU is lost")
	_, err = s.Condition(t.Context(), "GPU-00000000-0000-0000-0000-000000000000")
	require.ErrorContains(t, err, "not found")
	s.has["nvmlDeviceGetHandleByUUID"] = false
	_, err = s.Condition(t.Context(), id)
	require.ErrorContains(t, err, "lacks the function")
}

// In virtual machines and beside other drivers the state of a link cannot be read.
func TestALinkWhoseStateCannotBeReadIsNeitherUpNorDown(t *testing.T) {
	f, s := newFake(t, gputest.Node("a100-80gb", 1), Options{})
	g := f.gpus[0]
	g.links = []fakeLink{{}, {down: true}}
	for _, ret := range []nvml.Return{nvml.ERROR_NO_PERMISSION, nvml.ERROR_NOT_FOUND, nvml.ERROR_TIMEOUT, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_UNKNOWN} {
		g.refuse = map[string]nvml.Return{"nvmlDeviceGetNvLinkState": ret}
		got, err := s.Condition(t.Context(), g.device.UUID)
		require.NoError(t, err, ret)
		require.Equal(t, gpu.NVLinks{}, got.NVLinks)
	}
	g.refuse = map[string]nvml.Return{"nvmlDeviceGetNvLinkState": nvml.ERROR_GPU_IS_LOST}
	_, err := s.Condition(t.Context(), g.device.UUID)
	require.ErrorContains(t, err, "the GPU is lost")
}

func TestTheConditionOfASimulatedGPU(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "h100-sxm", "--gpus", "2")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	built.Gpusim(t, "ecc", "--root", root, "--gpu", "1", "--uncorrected", "1")
	for i, d := range snap.Devices {
		got, err := s.Condition(t.Context(), d.UUID)
		require.NoError(t, err)
		require.Equal(t, gpu.ECC{On: true, Volatile: uint64(i), Aggregate: uint64(i)}, got.ECC)
		require.Equal(t, []gpu.Throttle{gpu.ThrottleIdle}, got.Throttle)
		require.Equal(t, 16, got.PCIe.MaxWidth)
		require.Equal(t, 5, got.PCIe.MaxGeneration)
		require.Len(t, got.NVLinks.Up, 18)
		require.Empty(t, got.NVLinks.Down)
	}
}

func TestConditionShowsDegradationByGpusim(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "h100-sxm", "--gpus", "2")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	condition := func(i int) gpu.Condition {
		c, err := s.Condition(t.Context(), snap.Devices[i].UUID)
		require.NoError(t, err)
		return c
	}
	well := condition(1)
	built.Gpusim(t, "degrade", "--root", root, "--gpu", "1", "--pcie-gen", "3", "--pcie-width", "8", "--throttle", "hw-thermal,hw-power-brake", "--links-down", "2,17")
	built.Gpusim(t, "remap", "--root", root, "--gpu", "1", "--kind", "failed")
	got := condition(1)
	require.Equal(t, gpu.PCIe{Generation: 3, MaxGeneration: 5, Width: 8, MaxWidth: 16}, got.PCIe)
	require.Equal(t, []gpu.Throttle{gpu.ThrottleHeat, gpu.ThrottlePowerBrake}, got.Throttle)
	require.Equal(t, []int{2, 17}, got.NVLinks.Down)
	require.Len(t, got.NVLinks.Up, 16)
	require.True(t, got.Rows.Failed)
	require.Equal(t, condition(0).PCIe, well.PCIe, "its neighbour")
	built.Gpusim(t, "remap", "--root", root, "--gpu", "1", "--kind", "none")
	built.Gpusim(t, "restore", "--root", root, "--gpu", "1")
	require.Equal(t, well, condition(1))
}

// c2cGPU is a GPU whose module has links to a CPU.
type c2cGPU struct {
	*fakeGPU
	active []bool
	answer nvml.Return // for each value
}

func (g c2cGPU) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	for i := range values {
		v := &values[i]
		v.NvmlReturn = uint32(g.answer)
		switch {
		case v.FieldId == nvml.FI_DEV_C2C_LINK_COUNT:
			v.Value[0] = byte(len(g.active))
		case v.FieldId == nvml.FI_DEV_C2C_LINK_GET_STATUS && g.active[v.ScopeId]:
			v.Value[0] = 1
		}
	}
	return nvml.SUCCESS
}

func TestLinksToTheCPUAreCounted(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 1), Options{})
	g := c2cGPU{fakeGPU: f.gpus[0], active: []bool{true, false, true}}
	require.Equal(t, 2, s.countC2CLinks(g))
	g.answer = nvml.ERROR_NOT_SUPPORTED
	require.Zero(t, s.countC2CLinks(g), "the driver does not know the field")
	s.has["nvmlDeviceGetFieldValues"] = false
	require.Zero(t, s.countC2CLinks(g), "the library lacks the function")
}
