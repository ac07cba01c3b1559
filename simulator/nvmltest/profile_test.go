package nvmltest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvlib/pkg/nvlib/info"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// described holds the values of the state, which the calls below must return.
func described(t *testing.T, m machine) *state.State {
	t.Helper()
	f, err := state.OpenRead(m.statePath())
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	s := new(state.State)
	f.Read(s)
	return s
}

func eachProfile(t *testing.T, body func(*testing.T, machine, nvml.Interface)) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) { alone(t, name, nil, body) })
	}
}

func TestGoNVMLReadsEveryProfile(t *testing.T) {
	eachProfile(t, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		want := described(t, m)
		require.Equal(t, version, must[string](t)(lib.SystemGetDriverVersion()))
		require.EqualValues(t, want.CudaVersion, must[int](t)(lib.SystemGetCudaDriverVersion_v2()))
		require.Equal(t, fmt.Sprintf("%d.%s", want.CudaVersion/1000, version), must[string](t)(lib.SystemGetNVMLVersion()))
		require.Len(t, want.GPUs(), must[int](t)(lib.DeviceGetCount()))
		for i, gpu := range want.GPUs() {
			t.Run(fmt.Sprint(i), func(t *testing.T) { matches(t, lib, handle(t, lib, i), i, gpu) })
		}
		_, ret := lib.DeviceGetHandleByIndex(len(want.GPUs()))
		require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	})
}

func matches(t *testing.T, lib nvml.Interface, d nvml.Device, index int, want *state.GPU) {
	text, number := must[string](t), must[int](t)
	require.Equal(t, index, number(d.GetIndex()))
	require.Equal(t, state.Text(want.Uuid[:]), text(d.GetUUID()))
	require.Equal(t, state.Text(want.Name[:]), text(d.GetName()))
	require.True(t, strings.HasPrefix(text(d.GetName()), "SIMULATED "))
	require.EqualValues(t, want.Minor, number(d.GetMinorNumber()))
	require.EqualValues(t, want.Brand, must[nvml.BrandType](t)(d.GetBrand()))
	require.EqualValues(t, want.Architecture, must[nvml.DeviceArchitecture](t)(d.GetArchitecture()))
	major, minor, ret := d.GetCudaComputeCapability()
	require.Equal(t, nvml.SUCCESS, ret)
	require.EqualValues(t, []uint32{want.CcMajor, want.CcMinor}, []uint32{uint32(major), uint32(minor)})

	pci := must[nvml.PciInfo](t)(d.GetPciInfo())
	bus := make([]byte, 0, len(pci.BusId))
	for _, c := range pci.BusId {
		bus = append(bus, byte(c))
	}
	address := want.Pci.Address()
	require.Equal(t, "0000"+strings.ToUpper(address), state.Text(bus))
	require.Equal(t, want.Pci.DeviceId, pci.PciDeviceId)

	by := map[string]func() (nvml.Device, nvml.Return){
		"UUID":       func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUID(state.Text(want.Uuid[:])) },
		"PCI":        func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(address) },
		"same index": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByIndex(index) },
	}
	if want.Pci.Domain == 0 {
		by["short PCI"] = func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(address[5:]) }
	}
	serial := state.Text(want.Serial[:])
	if own, ret := d.GetSerial(); serial == "" {
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	} else {
		require.Equal(t, serial, own)
		first := must[nvml.Device](t)(lib.DeviceGetHandleBySerial(serial)) // of two GPUs of a board, which have one
		require.Equal(t, serial, text(first.GetSerial()))
	}
	for name, found := range by {
		require.Equal(t, d, must[nvml.Device](t)(found()), name)
	}
	matchesMeasurements(t, d, want)
}

// requireKnown checks a number that a GPU may lack: it is 0 then.
func requireKnown[T int | uint32](t *testing.T, want uint32) func(T, nvml.Return) {
	return func(got T, ret nvml.Return) {
		t.Helper()
		if want == 0 {
			require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
			return
		}
		require.Equal(t, nvml.SUCCESS, ret)
		require.EqualValues(t, want, got)
	}
}

func memoryMatches(t *testing.T, d nvml.Device, want *state.GPU) {
	v1, ret := d.GetMemoryInfo()
	v2, ret2 := d.GetMemoryInfo_v2()
	if want.Unified != 0 {
		require.Equal(t, []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED}, []nvml.Return{ret, ret2})
	} else {
		require.Equal(t, want.MemoryTotal, v1.Total)
		require.Equal(t, v1.Total, v1.Used+v1.Free)
		require.Equal(t, want.MemoryReserved, v2.Reserved)
		require.Equal(t, v2.Total, v2.Used+v2.Free+v2.Reserved)
	}
	bar1, ret := d.GetBAR1MemoryInfo()
	require.Equal(t, want.Bar1Total, bar1.Bar1Total)
	require.Equal(t, want.Bar1Total == 0, ret == nvml.ERROR_NOT_SUPPORTED)
}

func matchesMeasurements(t *testing.T, d nvml.Device, want *state.GPU) {
	memoryMatches(t, d, want)
	requireKnown[uint32](t, want.PowerMw)(d.GetPowerUsage())
	requireKnown[uint32](t, want.PowerLimitMw)(d.GetPowerManagementLimit())
	requireKnown[uint32](t, want.PowerDefaultMw)(d.GetPowerManagementDefaultLimit())
	requireKnown[uint32](t, want.Temperature)(d.GetTemperature(nvml.TEMPERATURE_GPU))
	for clock := range nvml.CLOCK_COUNT {
		requireKnown[uint32](t, want.Clock[clock])(d.GetClockInfo(clock))
		requireKnown[uint32](t, want.ClockMax[clock])(d.GetMaxClockInfo(clock))
	}
	fan, ret := d.GetFanSpeed()
	if want.Fan == state.None {
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	} else {
		require.Equal(t, want.Fan, fan)
	}
	require.EqualValues(t, want.UtilGpu, must[nvml.Utilization](t)(d.GetUtilizationRates()).Gpu)
	requireKnown[int](t, want.PcieGenMax)(d.GetMaxPcieLinkGeneration())
	requireKnown[int](t, want.PcieWidth)(d.GetCurrPcieLinkWidth())
	requireKnown[int](t, want.PcieWidthMax)(d.GetMaxPcieLinkWidth())
	require.EqualValues(t, want.Cores, must[int](t)(d.GetNumGpuCores()))
	require.EqualValues(t, want.Virtualization, must[nvml.GpuVirtualizationMode](t)(d.GetVirtualizationMode()))
	current, _, ret := d.GetEccMode()
	if want.EccSupported == 0 {
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	} else {
		require.EqualValues(t, want.EccCurrent, current)
		require.Zero(t, must[uint64](t)(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)))
	}
	_, _, _, _, ret = d.GetRemappedRows()
	if want.RemapSupported == 0 {
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	} else {
		require.Equal(t, nvml.SUCCESS, ret)
		require.Equal(t, want.RemapMax, must[nvml.RowRemapperHistogramValues](t)(d.GetRowRemapperHistogram()).Max)
	}
	require.Empty(t, must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses()))
	_, ret = d.GetNumaNodeId()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	set, ret := d.GetMemoryAffinity(1, nvml.AFFINITY_SCOPE_NODE)
	if want.NumaNode < 0 {
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
	} else {
		require.Equal(t, []uint{1 << want.NumaNode}, set)
	}
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_LINK_COUNT}, {FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION},
		{FieldId: nvml.FI_DEV_C2C_LINK_COUNT}, {FieldId: nvml.FI_DEV_C2C_LINK_GET_STATUS, ScopeId: 9}}
	require.Equal(t, nvml.SUCCESS, d.GetFieldValues(field))
	require.EqualValues(t, want.Nlinks, field[0].Value[0])
	virtual := want.Virtualization == uint32(nvml.GPU_VIRTUALIZATION_MODE_VGPU)
	require.Equal(t, virtual, nvml.Return(field[1].NvmlReturn) == nvml.ERROR_NOT_SUPPORTED)
	require.EqualValues(t, want.C2cLinks, field[2].Value[0])
	require.Equal(t, want.C2cLinks == 10, field[3].Value[0] == 1)
	_, ret = d.GetSupportedEventTypes()
	require.Equal(t, virtual, ret == nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetCurrentClocksEventReasons()
	require.Equal(t, virtual, ret == nvml.ERROR_NOT_SUPPORTED)
}

func TestGoNvlibReadsEveryProfile(t *testing.T) {
	eachProfile(t, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		want := described(t, m)
		devices := device.New(lib)
		infos := info.New(info.WithNvmlLib(lib), info.WithDeviceLib(devices), info.WithRoot(m.root))
		require.Equal(t, info.PlatformNVML, infos.ResolvePlatform())
		gpus, err := devices.GetDevices()
		require.NoError(t, err)
		require.Len(t, gpus, len(want.GPUs()))
		for i, gpu := range gpus {
			g := want.GPUs()[i]
			for what, ask := range map[string]func() (string, error){
				"architecture": gpu.GetArchitectureAsString, "brand": gpu.GetBrandAsString,
				"addressing": gpu.GetAddressingModeAsString, "compute": gpu.GetCudaComputeCapabilityAsString,
			} {
				answer, err := ask()
				require.NoError(t, err, what)
				require.NotEqual(t, "Unknown", answer, what)
			}
			address, err := gpu.GetPCIBusID()
			require.NoError(t, err)
			require.Equal(t, g.Pci.Address(), address)
			coherent, err := gpu.IsCoherent()
			require.NoError(t, err)
			require.Equal(t, g.Addressing == uint32(nvml.DEVICE_ADDRESSING_MODE_ATS), coherent)
			attached, err := gpu.IsFabricAttached()
			require.NoError(t, err)
			// A fabric of one machine has no cluster UUID, and go-nvlib then says no.
			clustered := g.FabricState == nvml.GPU_FABRIC_STATE_COMPLETED && g.FabricCluster != [16]byte{}
			require.Equal(t, g.FabricSupported != 0 && clustered, attached)
			capable, err := gpu.IsMigCapable()
			require.NoError(t, err)
			require.Equal(t, g.MigSupported != 0, capable)
			enabled, err := gpu.IsMigEnabled()
			require.NoError(t, err)
			require.False(t, enabled)
			migProfilesMatch(t, gpu, g)
		}
	})
}

// migProfilesMatch: go-nvlib works the names out of slices and memory sizes, and so checks them.
func migProfilesMatch(t *testing.T, gpu device.Device, want *state.GPU) {
	profiles, err := gpu.GetMigProfiles()
	require.NoError(t, err)
	var got, names []string
	for _, p := range profiles {
		got = append(got, p.String())
	}
	for _, p := range want.GiProfile[:want.NGiProfiles] {
		names = append(names, state.Text(p.Name[:]))
	}
	require.Subset(t, got, names)
}

func TestGoGPUAllocatorReadsTheLinksOfEveryProfile(t *testing.T) {
	eachProfile(t, func(t *testing.T, m machine, lib nvml.Interface) {
		want := described(t, m)
		devices, err := gpuallocator.NewDevices(gpuallocator.WithNvmlLib(lib))
		require.NoError(t, err)
		require.Len(t, devices, len(want.GPUs()))
		for i, d := range devices {
			for j := range devices {
				if i == j {
					continue
				}
				direct := 0
				for _, link := range want.Gpu[i].Link[:want.Gpu[i].Nlinks] {
					if link.Active != 0 && link.RemoteType == state.RemoteGPU && int(link.RemoteGpu) == j {
						direct++
					}
				}
				nvlinks, levels := 0, 0
				for _, link := range d.Links[j] {
					if n := int(link.Type) - int(6); n > 0 { // after P2PLinkSameBoard come one to eighteen NVLinks
						nvlinks += n
					} else {
						levels++
					}
				}
				require.Equal(t, direct, nvlinks, "NVLinks between GPUs %d and %d", i, j)
				require.Equal(t, 1, levels, "PCIe levels between GPUs %d and %d", i, j)
			}
		}
		if len(devices) <= 8 { // more take its policy minutes
			chosen := gpuallocator.NewBestEffortPolicy().Allocate(devices, nil, len(devices))
			require.Len(t, chosen, len(devices))
		}
	})
}

func TestPeersAreThoseThatReachEachOther(t *testing.T) {
	eachProfile(t, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		want := described(t, m)
		for i := range want.GPUs() {
			for j := range want.GPUs() {
				if i == j {
					continue
				}
				a, b := handle(t, lib, i), handle(t, lib, j)
				level := must[nvml.GpuTopologyLevel](t)(lib.DeviceGetTopologyCommonAncestor(a, b))
				require.EqualValues(t, want.Topology[i][j], level)
				near := must[[]nvml.Device](t)(a.GetTopologyNearestGpus(level))
				require.Contains(t, near, b)
				linked := want.Gpu[i].Nlinks > 0 && want.Gpu[j].Nlinks > 0
				status := must[nvml.GpuP2PStatus](t)(a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK))
				if !linked {
					require.Equal(t, nvml.P2P_STATUS_NOT_SUPPORTED, status)
				}
			}
		}
	})
}
