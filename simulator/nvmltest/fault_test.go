package nvmltest

import (
	"os"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/state"
)

func TestLostGPUFailsInEveryWayAndItsNeighboursWork(t *testing.T) {
	for name, c := range map[string]struct {
		how          uint32
		count        int
		handle, call nvml.Return
		wait         nvml.Return
	}{
		"calls":   {state.LostCalls, 4, nvml.SUCCESS, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_TIMEOUT},
		"handle":  {state.LostHandle, 4, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_TIMEOUT},
		"gone":    {state.LostGone, 3, nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_TIMEOUT},
		"unknown": {state.LostUnknown, 4, nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.ERROR_TIMEOUT},
		"events":  {state.LostEvents, 4, nvml.SUCCESS, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_IS_LOST},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
				initialised(t, lib)
				m.change(t, func(s *state.State) { s.Ngpus = 4 })
				lost, after := handle(t, lib, 1), handle(t, lib, 2)
				uuid, afterUUID := must[string](t)(lost.GetUUID()), must[string](t)(after.GetUUID())
				set := registered(t, lib, 0, 1)

				m.change(t, func(s *state.State) { s.Gpu[1].Lost = c.how })
				require.Equal(t, c.count, must[int](t)(lib.DeviceGetCount()))
				_, ret := lib.DeviceGetHandleByUUID(uuid)
				require.Equal(t, c.handle, ret)
				for what, call := range map[string]func() nvml.Return{
					"name":   func() nvml.Return { _, ret := lost.GetName(); return ret },
					"memory": func() nvml.Return { _, ret := lost.GetMemoryInfo(); return ret },
					"ecc": func() nvml.Return {
						_, ret := lost.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
						return ret
					},
					"mig":      func() nvml.Return { _, _, ret := lost.GetMigMode(); return ret },
					"link":     func() nvml.Return { _, ret := lost.GetNvLinkState(0); return ret },
					"ancestor": func() nvml.Return { _, ret := lib.DeviceGetTopologyCommonAncestor(after, lost); return ret },
					"register": func() nvml.Return { return lost.RegisterEvents(nvml.EventTypeXidCriticalError, set) },
					"fields":   func() nvml.Return { return lost.GetFieldValues(make([]nvml.FieldValue, 1)) },
				} {
					require.Equal(t, c.call, call(), what)
				}
				_, ret = set.Wait(0)
				require.Equal(t, c.wait, ret)

				index := 2
				if c.how == state.LostGone {
					index = 1
				}
				require.Equal(t, after, handle(t, lib, index))
				require.Equal(t, index, must[int](t)(after.GetIndex()))
				require.Equal(t, afterUUID, must[string](t)(after.GetUUID()))

				m.change(t, func(s *state.State) { s.Gpu[1].Lost = state.LostNo })
				require.Equal(t, uuid, must[string](t)(lost.GetUUID()))
			})
		})
	}
}

func TestInitReportsTheDriversError(t *testing.T) {
	truncate := func(size int64) func(*testing.T, machine) {
		return func(t *testing.T, m machine) { require.NoError(t, os.Truncate(m.statePath(), size)) }
	}
	for name, c := range map[string]struct {
		damage func(*testing.T, machine)
		want   nvml.Return
	}{
		"no state":     {func(t *testing.T, m machine) { require.NoError(t, os.Remove(m.statePath())) }, nvml.ERROR_DRIVER_NOT_LOADED},
		"empty state":  {truncate(0), nvml.ERROR_UNKNOWN},
		"half a state": {truncate(int64(state.Size) / 2), nvml.ERROR_UNKNOWN},
		"a byte short": {truncate(int64(state.Size) - 1), nvml.ERROR_UNKNOWN},
		"too long":     {truncate(int64(state.Size) + 1), nvml.ERROR_UNKNOWN},
		"not a state": {func(t *testing.T, m machine) {
			require.NoError(t, os.WriteFile(m.statePath(), make([]byte, state.Size), 0o644))
		}, nvml.ERROR_UNKNOWN},
		"another module":      {func(t *testing.T, m machine) { m.change(t, func(s *state.State) { copy(s.ModuleVersion[:], "570.1") }) }, nvml.ERROR_LIB_RM_VERSION_MISMATCH},
		"no nvidiactl":        {func(t *testing.T, m machine) { require.NoError(t, os.Remove(m.node("nvidiactl"))) }, nvml.ERROR_DRIVER_NOT_LOADED},
		"forbidden nvidiactl": {func(t *testing.T, m machine) { forbid(t, m.node("nvidiactl")) }, nvml.ERROR_NO_PERMISSION},
		"told to fail": {func(t *testing.T, m machine) {
			m.change(t, func(s *state.State) { s.InitError = uint32(nvml.ERROR_IRQ_ISSUE) })
		}, nvml.ERROR_IRQ_ISSUE},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, "t4", func(m machine) { c.damage(t, m) }, func(t *testing.T, m machine, lib nvml.Interface) {
				require.Equal(t, c.want, lib.Init())
				_, ret := lib.DeviceGetCount()
				require.Equal(t, nvml.ERROR_UNINITIALIZED, ret)
			})
		})
	}
}

// forbid makes a node that even root may not open: a directory cannot be written to (EISDIR is not
// "no such device").
func forbid(t *testing.T, node string) {
	require.NoError(t, os.Remove(node))
	require.NoError(t, os.Mkdir(node, 0o755))
}

func TestOnlyGPUsWhoseNodesMayBeUsedAreThere(t *testing.T) {
	prepare := func(m machine) {
		require.NoError(t, os.Remove(m.node("nvidia0")))
		forbid(t, m.node("nvidia2"))
	}
	alone(t, "h100-sxm", prepare, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		require.Equal(t, 6, must[int](t)(lib.DeviceGetCount()))
		for index, minor := range []int{1, 3, 4, 5, 6, 7} {
			d := handle(t, lib, index)
			require.Equal(t, minor, must[int](t)(d.GetMinorNumber()))
			require.Equal(t, index, must[int](t)(d.GetIndex()))
		}
		hidden := described(t, m).Gpu[0]
		_, ret := lib.DeviceGetHandleByUUID(state.Text(hidden.Uuid[:]))
		require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
	})
}

func TestInitCountsReferencesAndHandlesOutliveIt(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		require.Equal(t, nvml.SUCCESS, lib.Init())
		require.Equal(t, nvml.SUCCESS, lib.Init())
		d := handle(t, lib, 0)
		require.Equal(t, nvml.SUCCESS, lib.Shutdown())
		name := must[string](t)(d.GetName())
		require.Equal(t, nvml.SUCCESS, lib.Shutdown())
		_, ret := d.GetName()
		require.Equal(t, nvml.ERROR_UNINITIALIZED, ret)
		require.Equal(t, nvml.ERROR_UNINITIALIZED, lib.Shutdown())
		require.Equal(t, nvml.SUCCESS, lib.Init())
		require.Equal(t, name, must[string](t)(d.GetName()))
		require.Equal(t, d, handle(t, lib, 0))
		require.Equal(t, nvml.SUCCESS, lib.Shutdown())
	})
}

func TestUpgradeIsVisibleToAProcessOnTheOldLibrary(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		require.Equal(t, nvml.SUCCESS, lib.Init())
		m.change(t, func(s *state.State) {
			clear(s.ModuleVersion[:])
			copy(s.ModuleVersion[:], "590.10")
		})
		require.NoError(t, os.Remove(m.statePath()))
		require.Equal(t, nvml.SUCCESS, lib.Shutdown())
		require.Equal(t, nvml.ERROR_LIB_RM_VERSION_MISMATCH, lib.Init())
	})
}

func TestShortBuffersAndBadHandlesAreRefused(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		require.Equal(t, "Not Supported", lib.ErrorString(nvml.ERROR_NOT_SUPPORTED))
		require.Equal(t, "Driver/library version mismatch", lib.ErrorString(nvml.ERROR_LIB_RM_VERSION_MISMATCH))
		for number := uint32(1); number <= state.MaxProcs; number++ {
			m.change(t, func(s *state.State) {
				s.Gpu[0].Proc[number-1] = state.Proc{Used: 1, Pid: number, Gi: state.None, Ci: state.None, Memory: 1 << 20}
			})
			// go-nvml begins with too small a buffer and grows it on INSUFFICIENT_SIZE.
			processes := must[[]nvml.ProcessInfo](t)(handle(t, lib, 0).GetComputeRunningProcesses())
			require.Len(t, processes, int(number))
			require.Equal(t, number, processes[number-1].Pid)
		}
		_, ret := lib.DeviceGetHandleByUUID("GPU-none")
		require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
		_, ret = lib.DeviceGetHandleByPciBusId("nonsense")
		require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
		_, ret = handle(t, lib, 0).GetNvLinkState(0)
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	})
}

func TestDegradedGPUReportsIt(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d, neighbour := handle(t, lib, 3), handle(t, lib, 4)
		tells := func(d nvml.Device) []any {
			var down []int
			for l := range 18 {
				if must[nvml.EnableState](t)(d.GetNvLinkState(l)) == nvml.FEATURE_DISABLED {
					down = append(down, l)
				}
			}
			return []any{must[int](t)(d.GetCurrPcieLinkGeneration()), must[int](t)(d.GetCurrPcieLinkWidth()),
				must[uint64](t)(d.GetCurrentClocksThrottleReasons()), must[uint64](t)(d.GetCurrentClocksEventReasons()), down}
		}
		well := tells(d)
		require.Equal(t, []any{5, 16, uint64(nvml.ClocksEventReasonGpuIdle), uint64(nvml.ClocksEventReasonGpuIdle), []int(nil)}, well)
		degrade := func(gen, width uint32, throttle []string, links []string) {
			m.change(t, func(s *state.State) {
				require.NoError(t, s.Degrade(3, state.Degradation{PCIeGen: &gen, PCIeWidth: &width, Throttle: &throttle, LinksDown: &links}))
			})
		}
		degrade(3, 8, []string{"hw-thermal", "hw-slowdown"}, []string{"2", "5"})
		require.Equal(t, []any{3, 8, uint64(0x48), uint64(0x48), []int{2, 5}}, tells(d))
		require.Equal(t, []int{5, 16}, []int{must[int](t)(d.GetMaxPcieLinkGeneration()), must[int](t)(d.GetMaxPcieLinkWidth())})
		require.Equal(t, well, tells(neighbour))
		degrade(0, 0, []string{"none"}, []string{"none"})
		require.Equal(t, well, tells(d))
	})
}

func TestChangesInTheStateAreSeenAtOnce(t *testing.T) {
	alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		m.change(t, func(s *state.State) {
			g := &s.Gpu[0]
			g.EccVolatile[1][nvml.MEMORY_LOCATION_SRAM] = 3
			g.EccVolatile[1][nvml.MEMORY_LOCATION_DRAM] = 4
			g.RemapUncorrected, g.RemapPending, g.RecoveryAction = 2, 1, 1
			g.Link[3].Active, g.Link[5].ReplayErrors = 0, 9
		})
		total := must[uint64](t)(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))
		require.EqualValues(t, 7, total)
		sram := must[uint64](t)(d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM))
		require.EqualValues(t, 3, sram)
		_, uncorrected, pending, failed, ret := d.GetRemappedRows()
		require.Equal(t, nvml.SUCCESS, ret)
		require.Equal(t, []any{2, true, false}, []any{uncorrected, pending, failed})
		require.Equal(t, nvml.FEATURE_DISABLED, must[nvml.EnableState](t)(d.GetNvLinkState(3)))
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: nvml.FI_DEV_ECC_DBE_VOL_TOTAL},
			{FieldId: nvml.FI_DEV_ECC_DBE_VOL_DEV}, {FieldId: nvml.FI_DEV_REMAPPED_UNC}, {FieldId: nvml.FI_DEV_REMAPPED_PENDING},
			{FieldId: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L5}, {FieldId: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL},
			{FieldId: nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, ScopeId: 5}, {FieldId: nvml.FI_DEV_NVLINK_GET_STATE, ScopeId: 3},
		}
		require.Equal(t, nvml.SUCCESS, d.GetFieldValues(values))
		for i, want := range []byte{1, 7, 4, 2, 1, 9, 9, 9, 0} {
			require.EqualValues(t, nvml.SUCCESS, values[i].NvmlReturn, "field %d", values[i].FieldId)
			require.Equal(t, want, values[i].Value[0], "field %d", values[i].FieldId)
		}
		require.Equal(t, nvml.SUCCESS, d.ClearEccErrorCounts(nvml.VOLATILE_ECC))
		require.Zero(t, must[uint64](t)(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)))
		require.Equal(t, nvml.SUCCESS, d.ResetNvLinkErrorCounters(5))
		require.Zero(t, described(t, m).Gpu[0].Link[5].ReplayErrors)
	})
}
