package record

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// model reads the model of GPU i from NVML.
func (r *recorder) model(i int) (profile.Model, error) {
	device := r.devices[i]
	m := profile.Model{Device: profile.ID(r.places[i].DeviceId), Subsystem: profile.ID(r.places[i].SubsystemId)}
	for _, read := range []func(nvml.Device, *profile.Model) error{identity, memory, clocks, power, bus} {
		if err := read(device, &m); err != nil {
			return m, err
		}
	}
	if err := reliability(device, &m); err != nil {
		return m, err
	}
	m.SMs = m.Cores / coresPerSM(m.Compute)
	m.NVLink.Fabric = r.fabric(device)
	m.C2CLinks = field(device, nvml.FI_DEV_C2C_LINK_COUNT, 0)
	if err := surroundings(device, &m); err != nil {
		return m, err
	}
	var err error
	if m.MIG, err = partitions(device); err != nil {
		return m, err
	}
	if known := r.embeddedModel(i); known != nil {
		// NVML does not report the cache, and some drivers report MIG profiles only while MIG is on.
		m.Memory.L2 = known.Memory.L2
		r.note("the size of the L2 cache of %s is not in NVML: taken from this program's own model", m.Name)
		if m.Memory.Unified {
			m.Memory.Total, m.Memory.Reserved = known.Memory.Total, known.Memory.Reserved
			r.note("the memory of %s is the CPU's: its size is taken from this program's own model", m.Name)
		}
		if current, _, ret := device.GetMigMode(); m.MIG == nil && ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_DISABLE {
			m.MIG = known.MIG
			r.note("the MIG profiles of %s are not reported while MIG is off: taken from this program's own model", m.Name)
		}
	} else {
		r.note("the size of the L2 cache of %s is not known: write it into the profile", m.Name)
	}
	return m, nil
}

// embeddedModel returns the embedded model of the GPU; nil if there is none.
func (r *recorder) embeddedModel(i int) *profile.Model {
	id := profile.ID(r.places[i].DeviceId)
	if _, asked := r.models[id]; !asked {
		r.models[id] = nil
		if m, ok := profile.ModelByDevice(id); ok {
			r.models[id] = &m
		}
	}
	return r.models[id]
}

func identity(device nvml.Device, m *profile.Model) error {
	name, ret := device.GetName()
	brand, ret2 := device.GetBrand()
	architecture, ret3 := device.GetArchitecture()
	major, minor, ret4 := device.GetCudaComputeCapability()
	cores, ret5 := device.GetNumGpuCores()
	part, ret6 := device.GetBoardPartNumber()
	vbios, ret7 := device.GetVbiosVersion()
	board, ret8 := device.GetMultiGpuBoard()
	m.Name, m.Brand, m.Architecture = name, uint32(brand), uint32(architecture)
	m.Compute = fmt.Sprintf("%d.%d", major, minor)
	m.Cores, m.BoardPart, m.VBIOS, m.MultiGPU = uint32(cores), part, vbios, board != 0
	return errors.Join(asError("name", ret), asError("brand", ret2), asError("architecture", ret3), asError("compute capability", ret4),
		asError("count of cores", ret5), optional("board part number", ret6), optional("VBIOS", ret7), optional("kind of board", ret8))
}

// coresPerSM is the number of FP32 cores of a multiprocessor (CUDA C++
// Programming Guide, arithmetic instructions): 64 on Volta, Turing and A100,
// else 128.
func coresPerSM(compute string) uint32 {
	switch compute {
	case "6.0", "7.0", "7.2", "7.5", "8.0":
		return 64
	}
	return 128
}

// surroundings reads how the GPU reaches the CPU's memory, and whether it is in a virtual machine.
func surroundings(device nvml.Device, m *profile.Model) error {
	mode, ret := device.GetAddressingMode()
	virtual, ret2 := device.GetVirtualizationMode()
	if ret == nvml.SUCCESS {
		m.Addressing = map[nvml.DeviceAddressingModeType]string{
			nvml.DEVICE_ADDRESSING_MODE_HMM: "HMM", nvml.DEVICE_ADDRESSING_MODE_ATS: "ATS",
		}[nvml.DeviceAddressingModeType(mode.Value)]
	}
	if ret2 == nvml.SUCCESS {
		m.Virtual = map[nvml.GpuVirtualizationMode]string{
			nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "passthrough", nvml.GPU_VIRTUALIZATION_MODE_VGPU: "vgpu",
		}[virtual]
	}
	return errors.Join(optional("addressing mode", ret), optional("virtualization", ret2))
}

func memory(device nvml.Device, m *profile.Model) error {
	total, ret := device.GetMemoryInfo_v2()
	unified := ret == nvml.ERROR_NOT_SUPPORTED
	if unified {
		ret = nvml.SUCCESS
	}
	bar1, ret2 := device.GetBAR1MemoryInfo()
	bits, ret3 := device.GetMemoryBusWidth()
	m.Memory = profile.Memory{
		Total: profile.Bytes(total.Total), Reserved: profile.Bytes(total.Reserved),
		BAR1: profile.Bytes(bar1.Bar1Total), BusBits: bits, Unified: unified,
	}
	return errors.Join(asError("memory", ret), optional("BAR1", ret2), optional("memory bus", ret3))
}

func clocks(device nvml.Device, m *profile.Model) error {
	for i, kind := range []nvml.ClockType{nvml.CLOCK_GRAPHICS, nvml.CLOCK_SM, nvml.CLOCK_MEM, nvml.CLOCK_VIDEO} {
		now, ret := device.GetClockInfo(kind)
		most, ret2 := device.GetMaxClockInfo(kind)
		m.Clocks.Idle[i], m.Clocks.Max[i] = now, most
		if err := errors.Join(optional("clock", ret), optional("highest clock", ret2)); err != nil {
			return err
		}
	}
	return nil
}

func power(device nvml.Device, m *profile.Model) error {
	now, ret := device.GetPowerUsage()
	limit, ret2 := device.GetPowerManagementLimit()
	usual, ret3 := device.GetPowerManagementDefaultLimit()
	least, most, ret4 := device.GetPowerManagementLimitConstraints()
	watts := func(milli uint32) float64 { return float64(milli) / 1000 }
	m.Power = profile.Power{Idle: watts(now), Limit: watts(limit), Default: watts(usual), Min: watts(least), Max: watts(most)}

	temperature, ret5 := device.GetTemperature(nvml.TEMPERATURE_GPU)
	m.Temperature.Idle = temperature
	errs := []error{optional("power", ret), optional("power limit", ret2), optional("default power limit", ret3),
		optional("range of power limits", ret4), optional("temperature", ret5)}
	for kind, into := range map[nvml.TemperatureThresholds]*uint32{
		nvml.TEMPERATURE_THRESHOLD_GPU_MAX:  &m.Temperature.Max,
		nvml.TEMPERATURE_THRESHOLD_SLOWDOWN: &m.Temperature.Slowdown,
		nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: &m.Temperature.Shutdown,
	} {
		value, ret := device.GetTemperatureThreshold(kind)
		*into = value
		errs = append(errs, optional("temperature threshold", ret))
	}
	if fan, ret := device.GetFanSpeed(); ret == nvml.SUCCESS {
		m.Fan = &fan
	}
	state, ret6 := device.GetPerformanceState()
	m.PState = uint32(state)
	return errors.Join(append(errs, optional("performance state", ret6))...)
}

func bus(device nvml.Device, m *profile.Model) error {
	gen, ret := device.GetMaxPcieLinkGeneration()
	now, ret2 := device.GetCurrPcieLinkGeneration()
	most, ret3 := device.GetMaxPcieLinkWidth()
	width, ret5 := device.GetCurrPcieLinkWidth()
	m.PCIe = profile.PCIe{Gen: uint32(gen), Width: uint32(width)}
	if most != width {
		m.PCIe.WidthMax = uint32(most)
	}
	if now != gen {
		m.PCIe.GenIdle = uint32(now)
	}
	persistence, ret4 := device.GetPersistenceMode()
	m.Persistence = persistence == nvml.FEATURE_ENABLED
	return errors.Join(optional("PCIe generation", ret), optional("PCIe generation now", ret2),
		optional("PCIe width", ret3), optional("PCIe width now", ret5), optional("persistence mode", ret4))
}

func reliability(device nvml.Device, m *profile.Model) error {
	current, _, ret := device.GetEccMode()
	m.ECC = ret == nvml.SUCCESS && current == nvml.FEATURE_ENABLED
	histogram, ret2 := device.GetRowRemapperHistogram()
	if ret2 == nvml.SUCCESS {
		m.RowRemap = &profile.Remap{Max: histogram.Max, High: histogram.High, Partial: histogram.Partial, Low: histogram.Low, None: histogram.None}
	}
	return errors.Join(optional("ECC mode", ret), optional("row remapping", ret2))
}

func (r *recorder) fabric(device nvml.Device) bool {
	info, ret := device.GetGpuFabricInfo()
	return ret == nvml.SUCCESS && info.State != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED
}

// partitions reads the MIG profiles of the GPU; nil if there are none, or NVML does not
// report them.
func partitions(device nvml.Device) (*profile.MIG, error) {
	if _, _, ret := device.GetMigMode(); ret != nvml.SUCCESS {
		return nil, optional("MIG mode", ret)
	}
	mig := &profile.MIG{}
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := device.GetGpuInstanceProfileInfoV(id).V2()
		if ret != nvml.SUCCESS {
			if err := optional("GPU instance profile", ret); err != nil {
				return nil, err
			}
			continue
		}
		places, ret := device.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: info.Id})
		if err := optional("placements", ret); err != nil {
			return nil, err
		}
		if len(places) == 0 {
			continue
		}
		p := profile.GIProfile{
			ID: uint32(id), Name: strings.TrimPrefix(text(info.Name[:]), "MIG "), Slices: info.SliceCount, Instances: info.InstanceCount,
			SMs: info.MultiprocessorCount, MemoryMB: info.MemorySizeMB, Size: places[0].Size, CopyEngines: info.CopyEngineCount,
			Decoders: info.DecoderCount, Encoders: info.EncoderCount, JPEGs: info.JpegCount, OFAs: info.OfaCount,
		}
		for _, place := range places[:min(len(places), state.MaxPlacements)] {
			p.Start = append(p.Start, place.Start)
			mig.MemorySlices = max(mig.MemorySlices, place.Start+place.Size)
		}
		mig.Slices = max(mig.Slices, p.Slices)
		if len(mig.Profiles) < state.MaxGIProfiles {
			mig.Profiles = append(mig.Profiles, p)
		}
	}
	// From small to large, as the profiles of this program have them.
	slices.SortFunc(mig.Profiles, func(a, b profile.GIProfile) int {
		return cmp.Or(cmp.Compare(a.Slices, b.Slices), cmp.Compare(a.Size, b.Size), cmp.Compare(a.ID, b.ID))
	})
	if len(mig.Profiles) == 0 {
		return nil, nil
	}
	return mig, nil
}

// text reads a NUL-terminated string of C, whose characters Go sees as signed.
func text[T int8 | uint8](chars []T) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
