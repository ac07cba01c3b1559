package nvmltest

import (
	"os"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

func eachMIGProfile(t *testing.T, body func(*testing.T, machine, nvml.Interface)) {
	for _, name := range []string{"a100-80gb", "h100-sxm", "h200-sxm", "b200", "rtx-pro-6000"} {
		t.Run(name, func(t *testing.T) { alone(t, name, nil, body) })
	}
}

func enableMIG(t *testing.T, d nvml.Device) {
	t.Helper()
	activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, nvml.SUCCESS, activation)
}

// partition makes a GPU instance of the profile with one compute instance that takes all of it.
func partition(t *testing.T, d nvml.Device, gi, ci int) (nvml.GpuInstance, nvml.ComputeInstance) {
	t.Helper()
	gpu := must[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(gi))
	instance := must[nvml.GpuInstance](t)(d.CreateGpuInstance(&gpu))
	compute := must[nvml.ComputeInstanceProfileInfo](t)(instance.GetComputeInstanceProfileInfo(ci, 0))
	return instance, must[nvml.ComputeInstance](t)(instance.CreateComputeInstance(&compute))
}

func TestEveryMIGProfileCanBeMadeFilledAndRemoved(t *testing.T) {
	eachMIGProfile(t, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		enableMIG(t, d)
		for constant := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			info, ret := d.GetGpuInstanceProfileInfo(constant)
			if ret == nvml.ERROR_NOT_SUPPORTED {
				continue
			}
			require.Equal(t, nvml.SUCCESS, ret)
			places := must[[]nvml.GpuInstancePlacement](t)(d.GetGpuInstancePossiblePlacements(&info))
			require.NotEmpty(t, places)
			var made []nvml.GpuInstance
			for left := must[int](t)(d.GetGpuInstanceRemainingCapacity(&info)); left > 0; left-- {
				require.Equal(t, left, must[int](t)(d.GetGpuInstanceRemainingCapacity(&info)))
				made = append(made, must[nvml.GpuInstance](t)(d.CreateGpuInstance(&info)))
			}
			require.Len(t, made, int(info.InstanceCount))
			_, ret = d.CreateGpuInstance(&info)
			require.Equal(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
			require.ElementsMatch(t, made, must[[]nvml.GpuInstance](t)(d.GetGpuInstances(&info)))
			_, ret = d.SetMigMode(nvml.DEVICE_MIG_DISABLE)
			require.Equal(t, nvml.ERROR_IN_USE, ret)
			for _, instance := range made {
				fillComputeInstances(t, instance, info)
				require.Equal(t, nvml.SUCCESS, instance.Destroy())
				_, ret := instance.GetInfo()
				require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
			}
		}
		_, ret := d.SetMigMode(nvml.DEVICE_MIG_DISABLE)
		require.Equal(t, nvml.SUCCESS, ret)
	})
}

func fillComputeInstances(t *testing.T, gi nvml.GpuInstance, gpu nvml.GpuInstanceProfileInfo) {
	seen := 0
	for constant := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(constant, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		require.Equal(t, nvml.SUCCESS, ret)
		seen++
		var made []nvml.ComputeInstance
		for left := must[int](t)(gi.GetComputeInstanceRemainingCapacity(&info)); left > 0; left-- {
			made = append(made, must[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&info)))
		}
		require.Len(t, made, int(gpu.SliceCount/info.SliceCount))
		_, ret = gi.CreateComputeInstance(&info)
		require.Equal(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
		require.Equal(t, nvml.ERROR_IN_USE, gi.Destroy())
		for i, ci := range made {
			at := must[nvml.ComputeInstanceInfo](t)(ci.GetInfo())
			require.Equal(t, nvml.ComputeInstancePlacement{Start: uint32(i) * info.SliceCount, Size: info.SliceCount}, at.Placement)
		}
		for _, ci := range made {
			require.Equal(t, nvml.SUCCESS, ci.Destroy())
		}
	}
	require.NotZero(t, seen)
}

// An instance that has all media engines leaves room for those without any.
func TestGPUInstancesShareTheMediaEngines(t *testing.T) {
	alone(t, "rtx-pro-6000", nil, func(t *testing.T, _ machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		enableMIG(t, d)
		all := must[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME))
		some := must[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE))
		none := must[nvml.GpuInstanceProfileInfo](t)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME))
		must[nvml.GpuInstance](t)(d.CreateGpuInstance(&all))
		require.Zero(t, must[int](t)(d.GetGpuInstanceRemainingCapacity(&some)))
		_, ret := d.CreateGpuInstance(&some)
		require.Equal(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
		require.Equal(t, 3, must[int](t)(d.GetGpuInstanceRemainingCapacity(&none)))
		must[nvml.GpuInstance](t)(d.CreateGpuInstance(&none))
	})
}

func TestGoNvlibVisitsMIGDevices(t *testing.T) {
	eachMIGProfile(t, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		require.Zero(t, must[int](t)(d.GetMaxMigDeviceCount()))
		enableMIG(t, d)
		require.EqualValues(t, described(t, m).Gpu[0].MigSlices, must[int](t)(d.GetMaxMigDeviceCount()))
		partition(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE)
		partition(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE)
		partition(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE)

		want, uuids := described(t, m).Gpu[0], map[string]bool{}
		devices := device.New(lib)
		n := 0
		require.NoError(t, devices.VisitMigDevices(func(gpu int, parent device.Device, index int, mig device.MigDevice) error {
			ci := want.Ci[index]
			name := state.Text(ci.Name[:])
			profile, err := mig.GetProfile()
			require.NoError(t, err)
			require.Equal(t, name, profile.String())
			uuid := must[string](t)(mig.GetUUID())
			require.Equal(t, state.Text(ci.Uuid[:]), uuid)
			require.False(t, uuids[uuid])
			uuids[uuid] = true
			require.Equal(t, must[string](t)(parent.GetName())+" MIG "+name, must[string](t)(mig.GetName()))
			require.Equal(t, index, must[int](t)(mig.GetIndex()))
			require.True(t, must[bool](t)(mig.IsMigDeviceHandle()))
			require.EqualValues(t, ci.Gi, must[int](t)(mig.GetGpuInstanceId()))
			again := must[nvml.Device](t)(lib.DeviceGetHandleByUUID(uuid))
			require.Equal(t, d, must[nvml.Device](t)(again.GetDeviceHandleFromMigDeviceHandle()))
			require.Equal(t, must[nvml.DeviceAttributes](t)(again.GetAttributes()).MemorySizeMB<<20, must[nvml.Memory](t)(again.GetMemoryInfo()).Total)
			_, ret := again.GetPowerUsage()
			require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
			n++
			return nil
		}))
		require.Equal(t, 3, n)
		_, ret := d.GetUtilizationRates()
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	})
}

func TestMIGDevicesHaveTheUUIDsThatGpusimGivesThem(t *testing.T) {
	alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		enableMIG(t, d)
		partition(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE)
		gpu := described(t, m).Gpu[0]
		require.Equal(t, profile.MIGUUID(state.Text(gpu.Uuid[:]), gpu.Ci[0].Gi, gpu.Ci[0].Id), state.Text(gpu.Ci[0].Uuid[:]))
	})
}

func TestMIGDevicesWithoutTheirCapabilityNodesAreHidden(t *testing.T) {
	alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		enableMIG(t, d)
		for range 3 {
			partition(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE)
		}
		// Partitioning creates the same nodes as nvidia-modprobe; a container gets one of them.
		require.NoError(t, os.RemoveAll(m.node("nvidia-caps")))
		m.addCapability(t, 0, 8, 0)
		visible := must[nvml.Device](t)(d.GetMigDeviceHandleByIndex(0))
		require.Equal(t, 8, must[int](t)(visible.GetGpuInstanceId()))
		_, ret := d.GetMigDeviceHandleByIndex(1)
		require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
		for _, ci := range described(t, m).Gpu[0].Ci[:3] {
			_, ret := lib.DeviceGetHandleByUUID(state.Text(ci.Uuid[:]))
			require.Equal(t, ci.Gi == 8, ret == nvml.SUCCESS, "GPU instance %d: %v", ci.Gi, ret)
		}
		// Who may monitor sees the others as well.
		m.addNode(t, "nvidia-caps/nvidia-cap2")
		for i, ci := range described(t, m).Gpu[0].Ci[:3] {
			require.EqualValues(t, ci.Gi, must[int](t)(must[nvml.Device](t)(d.GetMigDeviceHandleByIndex(i)).GetGpuInstanceId()))
			must[nvml.Device](t)(lib.DeviceGetHandleByUUID(state.Text(ci.Uuid[:])))
		}
	})
}

func TestAMIGHandleDoesNotComeToMeanItsSuccessor(t *testing.T) {
	alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		enableMIG(t, d)
		partition(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE)
		old := must[nvml.Device](t)(d.GetMigDeviceHandleByIndex(0))
		m.change(t, func(s *state.State) { copy(s.Gpu[0].Ci[0].Uuid[:], "MIG-another") })
		_, ret := old.GetName()
		require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
		renewed := must[nvml.Device](t)(d.GetMigDeviceHandleByIndex(0))
		require.Contains(t, must[string](t)(renewed.GetName()), "1g.10gb")
	})
}

func TestGPUsWithoutMIGReportNotSupported(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		d := handle(t, lib, 0)
		_, _, ret := d.GetMigMode()
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
		_, ret = d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
		require.Zero(t, must[int](t)(d.GetMaxMigDeviceCount()))
	})
}

// A client that may only read the state – every one in a container – changes nothing.
func TestClientsThatMayNotWriteTheStateHaveNoPermission(t *testing.T) {
	alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		if os.Geteuid() == 0 {
			readOnly(t, m.lib)
		} else {
			require.NoError(t, os.Chmod(m.statePath(), 0o444))
		}
		initialised(t, lib)
		d := handle(t, lib, 0)
		_, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
		require.Equal(t, nvml.ERROR_NO_PERMISSION, ret)
		require.Equal(t, nvml.ERROR_NO_PERMISSION, d.ClearEccErrorCounts(nvml.VOLATILE_ECC))
		current, _, ret := d.GetMigMode()
		require.Equal(t, nvml.SUCCESS, ret)
		require.Zero(t, current)
		require.True(t, strings.HasPrefix(must[string](t)(d.GetName()), "SIMULATED "))
	})
}
