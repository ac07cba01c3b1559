package nvmltest

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// measured returns what NVML measures on a GPU: utilisation of the GPU and of its memory in
// percent, milliwatts, °C, the SM clock in MHz and the memory in use in MiB.
func measured(t *testing.T, d nvml.Device) [6]uint64 {
	t.Helper()
	u := must[nvml.Utilization](t)(d.GetUtilizationRates())
	return [6]uint64{
		uint64(u.Gpu), uint64(u.Memory), uint64(must[uint32](t)(d.GetPowerUsage())), uint64(must[uint32](t)(d.GetTemperature(nvml.TEMPERATURE_GPU))),
		uint64(must[uint32](t)(d.GetClockInfo(nvml.CLOCK_SM))), must[nvml.Memory_v2](t)(d.GetMemoryInfo_v2()).Used >> 20,
	}
}

func TestLoadedGPUMeasuresIt(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d, neighbour := handle(t, lib, 0), handle(t, lib, 1)
		idle, limit := measured(t, d), uint64(must[uint32](t)(d.GetEnforcedPowerLimit()))
		most := uint64(must[uint32](t)(d.GetMaxClockInfo(nvml.CLOCK_SM)))
		load := func(percent uint32) {
			m.change(t, func(s *state.State) { s.Gpu[0].Load, s.Gpu[0].LoadMemory = percent, 40<<30 })
		}
		load(100)
		full := measured(t, d)
		require.Equal(t, [6]uint64{100, 60, limit, full[3], most, idle[5] + 40<<10}, full)
		require.Greater(t, full[3], idle[3])
		require.Equal(t, idle, measured(t, neighbour))
		load(50)
		half := measured(t, d)
		require.EqualValues(t, 50, half[0])
		require.InDelta(t, float64(idle[2]+limit)/2, float64(half[2]), 1)
		m.change(t, func(s *state.State) {
			s.Gpu[0].LoadTemperature, s.Gpu[0].LoadPowerMw, s.Gpu[0].Throttle = 95, 650_000, 0x40
		})
		load(100)
		hot := measured(t, d)
		require.Equal(t, [6]uint64{100, 60, 650_000, 95, idle[4], full[5]}, hot, "throttled")
	})
}

// GPUs follow each other by an eighth of the period, so at any time one of eight is near each
// end of the range.
func TestLoadRisesAndFalls(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		m.change(t, func(s *state.State) {
			for _, g := range s.GPUs() {
				g.Load, g.LoadPeriodMs = 100, 3_600_000
			}
		})
		var all []uint64
		for i := range 8 {
			all = append(all, measured(t, handle(t, lib, i))[0])
		}
		require.LessOrEqual(t, uint64(50), slices.Min(all))
		require.Less(t, slices.Min(all), uint64(65))
		require.Greater(t, slices.Max(all), uint64(85))
	})
}

func TestLoadIsSharedOutAmongMIGDevices(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		m.change(t, func(s *state.State) {
			layout, err := profile.ParseLayout("3g.40gb,1g.10gb")
			require.NoError(t, err)
			require.NoError(t, profile.EnableMIG(&s.Gpu[0], layout))
			s.Gpu[0].LoadMemory = 32 << 30
			for _, ci := range s.Gpu[0].Ci {
				if ci.Used != 0 {
					m.addCapability(t, 0, int(ci.Gi), int(ci.Id))
				}
			}
		})
		d := handle(t, lib, 0)
		var used [2]uint64
		for i := range used {
			memory := must[nvml.Memory_v2](t)(must[nvml.Device](t)(d.GetMigDeviceHandleByIndex(i)).GetMemoryInfo_v2())
			used[i] = memory.Used >> 20
			require.Equal(t, memory.Total, memory.Used+memory.Free+memory.Reserved)
		}
		require.InEpsilon(t, 4*used[1], used[0], 0.05)
		_, ret := d.GetUtilizationRates()
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	})
}
